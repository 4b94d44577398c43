"""SIGTERM under load: what runs or waits is finished, what is new is refused, and the process ends with 0."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.support.engine_server import EngineServer
from tests.support.tiny_models import make_tiny_model

CLIENTS = 24
NEW_TOKENS = 1000


def test_sigterm_under_load(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, max_position_embeddings=4096)
    with EngineServer(folder, engine={"max_num_seqs": 8}) as server, ThreadPoolExecutor(CLIENTS) as pool:
        server.wait_ready()

        def ask(number: int) -> httpx.Response:
            body = {"prompt": "hello", "max_tokens": NEW_TOKENS, "ignore_eos": True, "stream": number % 2 == 0}
            return server.http.post(f"{server.url}/v1/completions", json=body, timeout=120)

        answers = [pool.submit(ask, number) for number in range(CLIENTS)]
        server.wait_capacity(in_flight=CLIENTS)
        server.terminate()
        server.wait_capacity(draining=True)
        late = ask(1)
        finished = [answer.result() for answer in answers]
        exit_code = server.wait_exit()

    assert late.status_code == 503
    assert "retry-after" in late.headers
    assert late.json()["error"]["code"] == "draining"
    assert [answer.status_code for answer in finished] == [200] * CLIENTS
    for number, answer in enumerate(finished):
        if number % 2 == 0:
            assert answer.text.endswith("data: [DONE]\n\n")
            assert answer.text.count('"finish_reason":"length"') == 1
        else:
            assert answer.json()["usage"]["completion_tokens"] == NEW_TOKENS
    assert exit_code == 0
