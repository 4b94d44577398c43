"""Server-sent events: how they are written and how a stream is sent."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagefleet.engine.server.disconnect import ClientDisconnected, run_while_connected

DONE = b"data: [DONE]\n\n"

# JSON leaves these bare, but many clients split lines at them, as Python's str.splitlines does.
_LINE_BREAKS = (
    ("\x85".encode(), rb"\u0085"),
    ("\u2028".encode(), rb"\u2028"),
    ("\u2029".encode(), rb"\u2029"),
)


def event(data: dict[str, Any]) -> bytes:
    """Write one event."""
    text = msgspec.json.encode(data)
    for raw, escaped in _LINE_BREAKS:
        text = text.replace(raw, escaped)
    return b"data: " + text + b"\n\n"


class EventStream(Response):
    """Send events as they come, and close their source as soon as the client goes."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], *, close: Callable[[], None]) -> None:
        self.status_code = 200
        self.background = None
        self._events = events
        self._close = close  # a generator that was never started runs no clean-up of its own
        # no-cache and no buffering, or a proxy keeps the tokens until the end
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - the ASGI signature
        """Send the response."""
        try:
            await run_while_connected(receive, self._send(send))
        except (ClientDisconnected, OSError):  # OSError: the transport was found closed while sending
            pass
        finally:
            self._close()

    async def _send(self, send: Send) -> None:
        async with aclosing(self._events):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for chunk in self._events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
