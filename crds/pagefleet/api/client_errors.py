"""What the API server can answer instead of an object, as typed errors."""

import json
from dataclasses import dataclass

# The answer to a server-side-apply body that breaks the schema. It is the sender's mistake in spite of its status 500.
_TYPED_PATCH_FAILURE = "failed to create typed patch object"


class ApiError(Exception):
    """The API server refused a request, or could not be reached."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else f"{reason}: {message}")
        self.status = status
        """HTTP status; 0 where there was no answer."""
        self.reason = reason
        """Kubernetes' word for it, such as Forbidden, or HTTP's."""
        self.message = message
        """Kubernetes' sentence."""


class NotFound(ApiError):
    """There is no such object, namespace or kind."""


class Conflict(ApiError):
    """Somebody else was faster: a stale resourceVersion, another uid, a field of another manager, a taken name."""


class Invalid(ApiError):
    """The object breaks its schema or a rule; sending it again won't help."""


class Unreachable(ApiError):
    """No answer came: refused, cut off, or not in time."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Unreachable", message)


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, read to its end."""

    status: int
    body: bytes
    retry_after_s: float | None = None
    """How long the server asks to wait."""


def find_error(answer: Answer) -> ApiError | None:
    """Return why an answer refuses, or None for a success. A body that is no JSON, as proxies send, will do."""
    if 200 <= answer.status < 300:
        return None
    reason, message = _read_status(answer.body)
    reason, message = reason or f"HTTP {answer.status}", message or "no message"
    kind: type[ApiError] = {404: NotFound, 409: Conflict, 422: Invalid}.get(answer.status, ApiError)
    if answer.status == 500 and _TYPED_PATCH_FAILURE in message:
        kind = Invalid
    return kind(answer.status, reason, message)


def _read_status(body: bytes) -> tuple[str, str]:
    """Return the reason and message of a `metav1.Status`; of anything else its first line."""
    try:
        status = json.loads(body)
    except ValueError:
        status = None
    if isinstance(status, dict):
        return str(status.get("reason") or ""), str(status.get("message") or "")
    text = body.decode(errors="replace").strip()
    return "", text.splitlines()[0][:200] if text else ""
