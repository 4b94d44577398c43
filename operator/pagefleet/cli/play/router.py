"""One URL in front of all replicas: the body's `model` chooses the service, the fewest requests in flight the replica.

Bytes pass through unchanged and unbuffered. A client that leaves closes its upstream, so that the engine aborts the
sequence. An upstream that dies before its first body byte is replaced once; generation has no side effect to repeat.
Where no replica is ready and a request wakes one, the request is held until then.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from enum import Enum, auto
from typing import Protocol

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pagefleet.cli.play.holding import NotHeld

LARGEST_BODY_BYTES = 64 * 1024 * 1024
RETRY_AFTER_S = 2
CONNECT_TIMEOUT_S = 5.0

# RFC 9110 §7.6.1: these belong to one connection, not to the message.
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
    }
    | {b"transfer-encoding", b"upgrade"}
)
_NOT_FORWARDED = _HOP_BY_HOP | {b"host", b"content-length"}  # httpx writes its own for the upstream


class Upstream(Protocol):
    """A replica as the router sees it."""

    url: str
    in_flight: int

    @property
    def is_ready(self) -> bool:
        """Tell whether it takes new requests."""


class Directory(Protocol):
    """Who serves what now."""

    def models(self) -> Sequence[str]:
        """List the served names, ready or not."""

    def ready_replicas(self, model: str) -> Sequence[Upstream]:
        """List the replicas of a model that take new requests."""

    async def hold(self, model: str) -> None:
        """Wait for a ready replica where a request wakes one; raises NotHeld with why not."""


class RoutingError(Exception):
    """Answer the client with an error in OpenAI's shape."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",  # noqa: A002 - OpenAI's word
        parameter: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"message": message, "type": type, "param": parameter, "code": code}
        self.headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}

    def body(self) -> bytes:
        """Return the JSON body."""
        return json.dumps({"error": self.error}).encode()

    def response(self) -> Response:
        """Return the whole answer."""
        return Response(self.body(), self.status, self.headers, "application/json")


def build_router(directory: Directory, client: httpx.AsyncClient) -> Starlette:
    """Build the application; `client` comes from `upstream_client` and stays the caller's."""

    async def health(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(_request: Request) -> Response:
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "pagefleet"} for name in directory.models()]
        return JSONResponse({"object": "list", "data": data})

    async def error(request: Request, failure: Exception) -> Response:
        status = failure.status_code if isinstance(failure, HTTPException) else 500
        what = "takes no " + request.method if status == 405 else "is not a path of this server"
        return RoutingError(status, f"{request.url.path} {what}: try POST /v1/chat/completions.").response()

    forward = _Forward(directory, client)
    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            *(Route(path, forward, methods=["POST"]) for path in ("/v1/{rest:path}", "/tokenize", "/detokenize")),
        ],
        exception_handlers={404: error, 405: error},
    )


def upstream_client() -> httpx.AsyncClient:
    """Build the client for upstreams: no read timeout, no proxies, no connection reuse.

    An engine closes idle connections when it likes; a reused one would look like a dead replica, and a new one to
    localhost costs 0.2 ms.
    """
    client = httpx.AsyncClient(
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        trust_env=False,
        follow_redirects=False,
    )
    client.headers.clear()  # the client's headers go through, and no others
    return client


class _Outcome(Enum):
    ANSWERED = auto()
    REFUSED = auto()
    DIED = auto()


class _Forward:
    """Forward one POST, as a plain ASGI application: that is where a client's leaving can be seen at any time."""

    def __init__(self, directory: Directory, client: httpx.AsyncClient) -> None:
        self._directory = directory
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            body = await _read(request)
            model = pick_model(body, self._directory.models())
        except RoutingError as error:
            await error.response()(scope, receive, send)
            return
        except ClientDisconnect:
            return
        answering = asyncio.create_task(self._answer(request, body, model, send))
        leaving = asyncio.create_task(_disconnection(receive))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)

    async def _answer(self, request: Request, body: bytes, model: str, send: Send) -> None:
        tried: set[str] = set()
        try:
            while True:
                upstream = self._choose(model, tried)
                if upstream is None:
                    await self._hold(model)
                    continue
                outcome = await self._relay(upstream, request, body, send, may_retry=not tried)
                if outcome is _Outcome.ANSWERED:
                    return
                if outcome is _Outcome.DIED:
                    tried.add(upstream.url)
        except RoutingError as error:
            await error.response()(request.scope, request.receive, send)

    def _choose(self, model: str, tried: set[str]) -> Upstream | None:
        """Return the ready replica with the fewest requests in flight; None where none was ready yet."""
        ready = [upstream for upstream in self._directory.ready_replicas(model) if upstream.url not in tried]
        if ready:
            return min(ready, key=lambda upstream: upstream.in_flight)
        if tried:
            raise _died()
        return None

    async def _hold(self, model: str) -> None:
        try:
            await self._directory.hold(model)
        except NotHeld as reason:
            raise RoutingError(
                503,
                f"No replica of {model} is ready: {reason}. Try again in {RETRY_AFTER_S} s.",
                type="service_unavailable",
                code="not_ready",
                retry_after_s=RETRY_AFTER_S,
            ) from None

    async def _relay(
        self, upstream: Upstream, request: Request, body: bytes, send: Send, *, may_retry: bool
    ) -> "_Outcome":
        """Send the request to one replica and its answer to the client, unless another one should be tried."""
        url = httpx.URL(upstream.url + request.url.path, query=request.scope["query_string"] or None)
        outgoing = self._client.build_request("POST", url, headers=_forwarded(request.headers.raw), content=body)
        response: httpx.Response | None = None
        upstream.in_flight += 1
        try:
            try:
                response = await self._client.send(outgoing, stream=True)
                chunks = response.aiter_raw()
                first = await anext(chunks, b"")
            except httpx.TransportError as error:
                if may_retry:
                    return _Outcome.DIED
                raise _died() from error
            if response.status_code == 503 and not upstream.is_ready:
                return _Outcome.REFUSED  # it began to drain while the request was on its way
            await _copy(response, first, chunks, send)
            return _Outcome.ANSWERED
        finally:
            upstream.in_flight -= 1
            if response is not None:
                await response.aclose()


async def _copy(response: httpx.Response, first: bytes, chunks: AsyncIterator[bytes], send: Send) -> None:
    """Send an upstream's answer on as it comes. One that breaks off ends in an error event, or in a cut connection."""
    headers = [(name.lower(), value) for name, value in response.headers.raw if name.lower() not in _HOP_BY_HOP]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": first, "more_body": True})
    try:
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except httpx.TransportError:
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            raise  # the server closes the connection, so that nobody takes the half for the whole
        event = b"data: " + _died().body() + b"\n\n"
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def pick_model(body: bytes, models: Sequence[str]) -> str:
    """Return the served name that a body asks for; raises RoutingError. With one model the field may be left out."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RoutingError(400, f"The body is not JSON: {error}.", code="invalid_json") from None
    if not isinstance(content, dict):
        raise RoutingError(400, 'The body is not a JSON object: write {"model": …}.', code="invalid_json")
    known = ", ".join(models) or "none"
    model = content.get("model", models[0] if len(models) == 1 else None)
    if not isinstance(model, str):
        raise RoutingError(400, f"model must be the name of a model: {known}.", parameter="model")
    if model not in models:
        message = f"The model {model!r} does not exist: here are {known}."
        raise RoutingError(404, message, parameter="model", code="model_not_found")
    return model


def _died() -> RoutingError:
    message = "The replica ended while it answered; it starts again, so send the request again."
    return RoutingError(502, message, type="server_error", code="replica_died", retry_after_s=RETRY_AFTER_S)


def _forwarded(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in _NOT_FORWARDED]


async def _read(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY_BYTES:
            raise RoutingError(413, f"The body is larger than {LARGEST_BODY_BYTES >> 20} MiB.", code="body_too_large")
    return bytes(body)


async def _disconnection(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
