"""The router's HTTP server: uvicorn on a socket of ours, leaving signals to `play`."""

import contextlib
import errno
import socket
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette

from pagefleet.cli.errors import UserMistake

SHUTDOWN_TIMEOUT_S = 5


class RouterServer(uvicorn.Server):
    """Serve an application until `should_exit` is set."""

    def __init__(self, application: Starlette) -> None:
        config = uvicorn.Config(
            application,
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="critical",  # an upstream that breaks off is told to the client, not in a traceback
            access_log=False,
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none: the first signal must drain the replicas while the router still serves."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any free port. Raises UserMistake that names the port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError, UnicodeError) as error:
        raise UserMistake(
            f"--host {host} is not an address of this machine ({error}): for example 127.0.0.1."
        ) from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise UserMistake(_why_not(host, port, error)) from None
    return listener


def base_url(listener: socket.socket) -> str:
    """Return the URL under which this machine reaches a listening socket."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} of {host} is in use: end what uses it, or take another port with --port (--port 0 takes any)."
        )
    if error.errno == errno.EACCES:
        return f"Port {port} needs more rights than this user has: take one from 1024 on, such as --port 8080."
    return f"Cannot listen on {host} port {port}: {error.strerror}. Try --host 127.0.0.1."
