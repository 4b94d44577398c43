"""Sockets and uvicorn, without uvicorn's own handling of signals and logs."""

import asyncio
import contextlib
import errno
import select
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from pagefleet.engine.errors import StartupError

CLOSE_TIMEOUT_S = 1
"""Time that open connections get at the end: by then every answer has been sent."""
KEEP_ALIVE_S = 75
"""Longer than the 60 s that common load balancers keep idle connections, so that they and not we close them."""
LISTEN_BACKLOG = 2048


def bind(host: str, port: int, *, flag: str) -> socket.socket:
    """Bind and return a listening socket; port 0 takes any free port. Raises StartupError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off Nagle's algorithm where the socket names TCP, and nowhere else. With it, the body of an answer
    # waits 40 ms for the client's delayed acknowledgement of the headers.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(LISTEN_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise StartupError(_bind_sentence(host, port, flag, error)) from error
    listener.setblocking(False)
    return listener


def _bind_sentence(host: str, port: int, flag: str, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"port {port} is in use; stop what listens there, or choose another with {flag} (0 takes any free port)"
    if isinstance(error, OSError) and error.errno == errno.EACCES:
        return f"port {port} needs root; choose one above 1023 with {flag}"
    return f"cannot listen on {host} port {port}: {error}; check --host and {flag}"


def _has_unread(connection: H11Protocol) -> bool:
    """Tell whether bytes of a request lie in the connection's buffer or its socket."""
    unread, _ = connection.conn.trailing_data
    poll = select.poll()
    poll.register(connection.transport.get_extra_info("socket"), select.POLLIN)
    return bool(unread or poll.poll(0))


class _Server(uvicorn.Server):
    """uvicorn that leaves signals to the lifecycle."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serve one app on one bound socket."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        host, port = listener.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._listener = listener
        self._server = _Server(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
            )
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to accept connections."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))

    def release_connections(self) -> None:
        """Close connections that wait for their next request, and let those with one close behind its answer.

        Clients that keep connections then open new ones, which reach another replica. A connection that has not asked
        yet, or whose next request has arrived, is left to get an answer: closed now, it would look broken.
        """
        for connection in list(self._server.server_state.connections):
            if isinstance(connection, H11Protocol) and connection.cycle is not None and not _has_unread(connection):
                connection.shutdown()

    async def stop(self) -> None:
        """Close the socket and all connections; keep-alive ones at once, others after CLOSE_TIMEOUT_S."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._listener.close()
