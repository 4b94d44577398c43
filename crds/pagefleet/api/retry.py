"""Whether a request to the API server is sent again, and after what pause. Pure: the dice are an argument."""

from dataclasses import dataclass

from pagefleet.api.client_errors import ApiError, Invalid, Unreachable

TOO_MANY_REQUESTS = 429


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """How patient the client is."""

    attempts: int = 5
    """Requests in all. With the pauses below five of them bridge the 3 to 4 s that an API server takes to start."""
    first_pause_s: float = 0.25
    """Pause after the first failure, doubled each time."""
    longest_pause_s: float = 4.0
    """Bound of the doubling."""
    longest_asked_pause_s: float = 30.0
    """Bound of what the server may ask for in `Retry-After`; above it the error goes to the caller's own back-off."""


NEVER = RetrySettings(attempts=1)
"""For leader election, which has a clock of its own."""


def pause_before_retry_s(
    settings: RetrySettings,
    attempt: int,
    error: ApiError,
    *,
    retry_after_s: float | None,
    is_repeatable: bool,
    was_sent: bool,
    dice: float,
) -> float | None:
    """Return the seconds to wait before sending a request again, or None to give up.

    `attempt` counts from 1. A request that is not repeatable (a create, a write bound to a resourceVersion) is sent
    again only where the server surely did not act on it: it asked to come back later, or the request never left. `dice`
    is from 0 to 1 and spreads clients that failed at the same moment over half of each pause.
    """
    if attempt >= settings.attempts or not _may_pass_later(error):
        return None
    if not is_repeatable and error.status != TOO_MANY_REQUESTS and was_sent:
        return None
    if retry_after_s is not None and retry_after_s > settings.longest_asked_pause_s:
        return None
    pause_s = min(settings.first_pause_s * 2.0 ** (attempt - 1), settings.longest_pause_s)
    return (retry_after_s or 0.0) + pause_s * (0.5 + 0.5 * dice)


def _may_pass_later(error: ApiError) -> bool:
    if isinstance(error, Invalid):
        return False
    return isinstance(error, Unreachable) or error.status == TOO_MANY_REQUESTS or error.status >= 500
