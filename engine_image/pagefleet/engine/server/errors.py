"""Every error leaves in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from pagefleet.engine.errors import EngineDead, EngineError, QueueFull, RequestRefused

RETRY_LOADING_S = 5
"""Retry-After while the model loads: about the time between two readiness probes."""
RETRY_DRAINING_S = 1
"""Retry-After while draining: the next attempt should reach another replica at once."""

logger = logging.getLogger(__name__)


class HttpError(EngineError):
    """Answer a request with this status and this error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        parameter: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.parameter = parameter
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return the JSON body."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.parameter, "code": self.code}}

    def response(self) -> JSONResponse:
        """Return the HTTP response."""
        return JSONResponse(self.body(), self.status, headers=self.headers)


def unavailable(message: str, *, code: str, retry_after_s: int) -> HttpError:
    """Make a 503 that says when to try again."""
    return HttpError(503, message, code=code, headers={"Retry-After": str(retry_after_s)})


def unknown_model(asked: str, served: str) -> HttpError:
    """Make the 404 for a model that is not served here."""
    return HttpError(
        404,
        f"the model {asked!r} does not exist here; served: {served!r}",
        parameter="model",
        code="model_not_found",
    )


def as_http_error(error: Exception) -> HttpError:
    """Turn any error into the one that the client reads; what is unexpected tells the client nothing of the inside."""
    match error:
        case HttpError():
            return error
        case RequestRefused():
            return HttpError(400, str(error), parameter=error.parameter, code=error.code)
        case QueueFull():
            return unavailable(str(error), code="queue_full", retry_after_s=error.retry_after_s)
        case EngineDead():
            return unavailable(str(error), code="engine_dead", retry_after_s=RETRY_LOADING_S)
        case EngineError():
            return HttpError(500, str(error), code="engine_error")
        case HTTPException():
            return HttpError(error.status_code, _routing_sentence(error), code=_ROUTING_CODES.get(error.status_code))
        case _:
            return HttpError(500, "the server failed on this request; its log has the details", code="internal_error")


_ROUTING_CODES = {404: "not_found", 405: "method_not_allowed"}


def _routing_sentence(error: HTTPException) -> str:
    match error.status_code:
        case 404:
            return "there is nothing at this path; the API is under /v1, such as /v1/chat/completions"
        case 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            return f"this path does not take this method; use {allowed}"
        case _:
            return str(error.detail)


async def handle_error(_request: Request, error: Exception) -> JSONResponse:
    """Answer an error that an endpoint raised; registered for all of them."""
    http_error = as_http_error(error)
    if isinstance(error, HTTPException):
        http_error.headers.update(error.headers or {})
    return http_error.response()
