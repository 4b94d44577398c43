"""Fifty clients die at random points, from before the first byte to the middle of the answer: no block stays behind."""

import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.engine_server import EngineServer
from tests.support.tiny_models import make_tiny_model

CLIENTS = 50


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    folder = make_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=4096)
    with EngineServer(folder, engine={"max_num_seqs": 16}) as running:
        yield running.wait_ready()


def live_and_die(server: EngineServer, seed: int) -> None:
    """Send a request whole or in part, read a random part of the answer, and reset the connection."""
    generator = random.Random(seed)
    url = urlsplit(server.url)
    is_chat = generator.random() < 0.5
    body: dict[str, Any] = {"max_tokens": 3000, "ignore_eos": True, "stream": generator.random() < 0.6}
    body |= {"messages": [{"role": "user", "content": "hello " * 20}]} if is_chat else {"prompt": "hello " * 20}
    content = json.dumps(body).encode()
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    lines = ("Host: x", "Content-Type: application/json", f"Content-Length: {len(content)}", "", "")
    request = "\r\n".join((f"POST {path} HTTP/1.1", *lines)).encode() + content
    with socket.create_connection((url.hostname, url.port)) as connection:
        # Closing with unread data and a linger of 0 sends a reset, as a killed process's kernel does.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        if generator.random() < 0.1:
            connection.sendall(request[: generator.randrange(len(request))])
            return
        connection.sendall(request)
        connection.settimeout(generator.uniform(0, 1.5))
        unread = generator.choice([0, 1, 200, 5000, 50_000])
        try:
            while unread > 0 and (data := connection.recv(unread)):
                unread -= len(data)
        except TimeoutError:
            pass


def test_no_block_stays_behind(server: EngineServer) -> None:
    threads = [threading.Thread(target=live_and_die, args=(server, seed)) for seed in range(CLIENTS)]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    seen = server.capacity()
    for thread in threads:
        thread.join()

    report = server.wait_capacity(timeout_s=15, blocks_active=0, running=0, queue_depth=0, in_flight=0)

    assert seen["in_flight"] > 0, "the clients died before they had begun"
    assert report["blocks_free"] + report["blocks_cached"] == report["blocks_total"]
