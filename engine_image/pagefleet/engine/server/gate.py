"""What every request to the public port passes: key, readiness, drain, and the count of requests in flight."""

import secrets
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagefleet.engine.errors import RequestRefused
from pagefleet.engine.server.errors import RETRY_DRAINING_S, RETRY_LOADING_S, HttpError, as_http_error, unavailable
from pagefleet.engine.server.request_id import header_of, take_header
from pagefleet.engine.server.state import ServerState

GENERATING_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})


class Gate:
    """Refuse what may not pass, count the rest. Plain ASGI: Starlette's middleware class breaks `receive`."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_api = scope["path"] == "/v1" or scope["path"].startswith("/v1/")

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                if is_api and message["status"] >= 400:
                    self._state.metrics.increment("request_errors", labels=(str(message["status"]),))
                added = [*([header_of(scope)] if is_api else ()), *([_CLOSE] if self._state.is_draining else ())]
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        refusal = self._refusal(scope) if is_api or scope["path"] in _NEED_MODEL else None
        if refusal is not None:
            await refusal.response()(scope, receive, send_counted)
        elif scope["path"] in GENERATING_PATHS:
            self._state.requests_in_flight += 1
            try:
                await self._app(scope, receive, send_counted)
            finally:
                self._state.requests_in_flight -= 1
                self._state.request_ended.set()
        else:
            await self._app(scope, receive, send_counted)

    def _refusal(self, scope: Scope) -> HttpError | None:
        state = self._state
        try:
            take_header(scope)
        except RequestRefused as error:
            return as_http_error(error)
        is_api = scope["path"] not in _NEED_MODEL
        if is_api and state.server.api_keys and not _has_key(Headers(scope=scope), state.server.api_keys):
            return HttpError(
                401,
                "this server needs its API key: send Authorization: Bearer <key>",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if state.client.failure is not None:
            return unavailable(str(state.client.failure), code="engine_dead", retry_after_s=RETRY_LOADING_S)
        if state.serving is None:
            _, _, detail = state.phase()
            self._count_rejection(scope, "loading")
            return unavailable(f"the model is not loaded yet: {detail}", code="loading", retry_after_s=RETRY_LOADING_S)
        if state.is_draining and scope["path"] in GENERATING_PATHS:
            self._count_rejection(scope, "draining")
            return unavailable(
                "this replica is draining and takes no new requests; another one will",
                code="draining",
                retry_after_s=RETRY_DRAINING_S,
            )
        return None

    def _count_rejection(self, scope: Scope, reason: str) -> None:
        if scope["path"] in GENERATING_PATHS:
            self._state.metrics.increment("admission_rejections", labels=(reason,))


_CLOSE = (b"connection", b"close")
"""On every answer during a drain: the client's next request then comes over a new connection, to another replica."""

_NEED_MODEL = frozenset({"/tokenize", "/detokenize"})


def _has_key(headers: Headers, keys: Sequence[str]) -> bool:
    """Tell whether a request brings one of the keys, in a time that does not depend on which, or on how much of it."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    found = [secrets.compare_digest(given.strip().encode("latin-1"), key.encode()) for key in keys]
    return scheme.lower() == "bearer" and any(found)
