"""A drain as clients and the control plane see it: what was accepted finishes, and the rest goes elsewhere."""

import asyncio
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

import httpx
import pytest

from pagefleet.engine.server.http import bind
from tests.support.engine_server import EngineServer

TOKENS = 400


@pytest.fixture
def draining(engine: EngineServer) -> Iterator[EngineServer]:
    """An engine that takes requests again after the test."""
    engine.wait_capacity(in_flight=0)
    yield engine
    assert undrain(engine) == {"draining": False, "in_flight": 0}
    engine.wait_capacity(phase="Ready")


def drain(engine: EngineServer) -> dict[str, object]:
    answer: dict[str, object] = engine.http.post(f"{engine.admin_url}/drain").json()
    return answer


def undrain(engine: EngineServer) -> dict[str, object]:
    answer: dict[str, object] = engine.http.post(f"{engine.admin_url}/undrain").json()
    return answer


def body(**fields: object) -> bytes:
    return json.dumps({"prompt": "once", "max_tokens": TOKENS, "ignore_eos": True, **fields}).encode()


def connect(engine: EngineServer) -> HTTPConnection:
    """Open a connection that is kept, as a client's pool has it."""
    connection = HTTPConnection(urlsplit(engine.url).netloc, timeout=60)
    connection.connect()
    return connection


def is_closed(connection: HTTPConnection) -> bool:
    """Wait for the server's end of a connection; raises TimeoutError when it stays open."""
    assert isinstance(connection.sock, socket.socket)
    connection.sock.settimeout(10)
    return connection.sock.recv(1) == b""


def test_what_was_accepted_finishes_and_its_connections_close(draining: EngineServer) -> None:
    with ThreadPoolExecutor(4) as pool, ExitStack() as stack:
        connections = [stack.enter_context(closing(connect(draining))) for _ in range(4)]
        for number, connection in enumerate(connections):
            connection.request("POST", "/v1/completions", body(stream=number % 2 == 0))
        draining.wait_capacity(in_flight=4)
        streams = [pool.submit(connection.getresponse) for connection in connections[::2]]
        first_lines = [stream.result().readline() for stream in streams]

        assert drain(draining) == {"draining": True, "in_flight": 4}
        assert draining.http.get(f"{draining.admin_url}/readyz").status_code == 503
        assert draining.capacity()["phase"] == "Draining"
        refused = draining.http.post(f"{draining.url}/v1/completions", content=body())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) > 0
        assert refused.headers["connection"] == "close"
        assert drain(draining) == {"draining": True, "in_flight": 4}, "again is no other drain"

        for first, stream in zip(first_lines, streams, strict=True):
            text = (first + stream.result().read()).decode()
            assert text.endswith("data: [DONE]\n\n")
            assert text.count('"finish_reason":"length"') == 1
        for connection in connections[1::2]:
            answer = connection.getresponse()
            assert answer.status == 200
            assert answer.headers["connection"] == "close"
            assert json.loads(answer.read())["usage"]["completion_tokens"] == TOKENS
        # An answer whose head says `close` ends its connection in the client as well.
        assert all(is_closed(connection) for connection in connections[::2])
    draining.wait_capacity(in_flight=0, running=0, draining=True)


def test_connections_between_two_requests_are_closed(draining: EngineServer) -> None:
    with closing(connect(draining)) as idle, httpx.Client(base_url=draining.url) as client:
        idle.request("GET", "/version")
        assert idle.getresponse().read()
        assert client.get("/version").is_success

        assert drain(draining) == {"draining": True, "in_flight": 0}, "they do not hold the drain"
        assert is_closed(idle)
        undrain(draining)
        assert client.post("/v1/completions", content=body(max_tokens=1)).is_success, "over a new connection"


def test_a_connection_that_has_not_asked_gets_an_answer(draining: EngineServer) -> None:
    with closing(connect(draining)) as fresh, closing(connect(draining)) as halfway:
        halfway.putrequest("POST", "/v1/completions")
        halfway.putheader("Content-Length", str(len(body())))
        assert halfway.sock is not None
        halfway.endheaders()
        draining.wait_capacity(in_flight=1)
        drain(draining)

        fresh.request("POST", "/v1/completions", body())
        refused = fresh.getresponse()
        assert (refused.status, refused.headers["connection"]) == (503, "close")
        assert refused.read()
        halfway.send(body())
        accepted = halfway.getresponse()
        assert (accepted.status, accepted.headers["connection"]) == (200, "close"), "it came before the drain"
        assert accepted.read()


def test_a_drain_called_off_takes_requests_again(draining: EngineServer, http: httpx.Client) -> None:
    for _ in range(2):
        drain(draining)
        drain(draining)
        assert not http.get("/health").is_success
        assert undrain(draining) == {"draining": False, "in_flight": 0}
        assert undrain(draining) == {"draining": False, "in_flight": 0}
        assert draining.http.get(f"{draining.admin_url}/readyz").is_success
        answer = http.post("/v1/completions", content=body(max_tokens=1))
        assert answer.is_success
        assert "connection" not in answer.headers


async def test_answers_do_not_wait_for_acknowledgements() -> None:
    """Two writes to a connection with Nagle's algorithm are 40 ms apart."""
    has_no_delay: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        has_no_delay.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = bind("127.0.0.1", 0, flag="--port")
    async with await asyncio.start_server(accept, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        assert await has_no_delay
        writer.close()
