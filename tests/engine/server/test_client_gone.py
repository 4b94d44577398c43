"""A client that goes away frees its blocks at once, in streams and in plain answers alike."""

import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.engine_server import EngineServer

LONG_TOKENS = 4000
LONG = {"prompt": "once", "max_tokens": LONG_TOKENS, "ignore_eos": True}


def send_and_hang_up(engine: EngineServer, body: dict[str, Any], *, read_bytes: int) -> None:
    """Send a request over a bare socket, read some of the answer, and close."""
    url = urlsplit(engine.url)
    data = httpx.Request("POST", f"{engine.url}/v1/completions", json=body)
    with socket.create_connection((url.hostname, url.port)) as connection:
        head = "\r\n".join(f"{name}: {value}" for name, value in data.headers.items())
        connection.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n\r\n".encode() + data.content)
        engine.wait_capacity(in_flight=1)
        while read_bytes > 0:
            read_bytes -= len(connection.recv(read_bytes))


@pytest.mark.parametrize(("stream", "read_bytes"), [(True, 2000), (True, 0), (False, 0)])
def test_blocks_are_free_soon_after_a_client_hangs_up(engine: EngineServer, stream: bool, read_bytes: int) -> None:
    before = engine.wait_capacity(in_flight=0, running=0)

    send_and_hang_up(engine, {**LONG, "stream": stream}, read_bytes=read_bytes)

    report = engine.wait_capacity(in_flight=0, running=0, blocks_active=0, queue_depth=0)
    # Counted in tokens, since a busy machine makes both processes slow.
    assert report["generation_tokens_total"] - before["generation_tokens_total"] < LONG_TOKENS / 2
    assert report["blocks_free"] + report["blocks_cached"] == report["blocks_total"]


def test_all_choices_of_a_request_end_with_its_client(engine: EngineServer) -> None:
    before = engine.wait_capacity(in_flight=0, running=0)

    send_and_hang_up(engine, {**LONG, "prompt": ["a", "b", "c", "d"], "stream": True}, read_bytes=500)

    report = engine.wait_capacity(in_flight=0, running=0, blocks_active=0)
    assert report["generation_tokens_total"] - before["generation_tokens_total"] < LONG_TOKENS


def test_a_refused_prompt_takes_its_siblings_with_it(engine: EngineServer, http: httpx.Client) -> None:
    before = engine.wait_capacity(in_flight=0, running=0)

    response = http.post("/v1/completions", json={**LONG, "prompt": [[5], [5] * 200]})

    assert response.status_code == 400
    report = engine.wait_capacity(in_flight=0, running=0, blocks_active=0)
    assert report["generation_tokens_total"] - before["generation_tokens_total"] < LONG_TOKENS / 2


def test_a_client_that_goes_while_sending_does_no_harm(engine: EngineServer) -> None:
    url = urlsplit(engine.url)
    with socket.create_connection((url.hostname, url.port)) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
        engine.wait_capacity(in_flight=1)

    engine.wait_capacity(in_flight=0)


def test_neighbours_are_not_disturbed(engine: EngineServer, http: httpx.Client) -> None:
    body = {"prompt": "hello", "temperature": 0, "max_tokens": 50, "ignore_eos": True}
    alone = http.post("/v1/completions", json=body).json()["choices"]

    send_and_hang_up(engine, {**LONG, "stream": True}, read_bytes=500)

    assert http.post("/v1/completions", json=body).json()["choices"] == alone
