"""Start, drain and death of whole engines, seen from outside."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from tests.support.engine_server import EngineServer

LONG = {"prompt": "once", "max_tokens": 4000, "ignore_eos": True}
SOON_S = 8.0
"""About 2 s, most of it time for last bytes, on a machine that may have five other things to do."""
Result = TypeVar("Result")


class SlowTokenizerServer(EngineServer):
    """A server that never gets its tokenizer, as with a cold disk."""

    script = (
        "import time\n"
        "from pagefleet.engine.server import lifecycle\n"
        "lifecycle._load_tokenizer = lambda source: time.sleep(600)\n"
    ) + EngineServer.script


def in_background(work: Callable[[], Result]) -> Future[Result]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future


def post(server: EngineServer, body: dict[str, Any]) -> httpx.Response:
    return server.http.post(f"{server.url}/v1/completions", json=body, timeout=60)


def test_loading_is_told_apart_and_a_signal_ends_it(tiny_model: Path) -> None:
    with EngineServer(tiny_model) as server:
        server.wait_listening()

        refused = post(server, LONG)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "loading"
        assert int(refused.headers["retry-after"]) > 0
        assert server.http.get(f"{server.url}/health").status_code == 503
        assert server.http.get(f"{server.url}/v1/models").status_code == 503
        assert server.http.get(f"{server.url}/version").status_code == 200
        assert server.http.get(f"{server.admin_url}/startupz").status_code == 503
        assert server.http.get(f"{server.admin_url}/readyz").status_code == 503
        assert server.http.get(f"{server.admin_url}/livez").status_code == 200
        report = server.capacity()
        assert report["phase"] in ("Starting", "Downloading", "Loading")
        assert report["detail"]
        assert report["blocks_total"] is report["queue_depth"] is report["running"] is None
        families = server.http.get(f"{server.url}/metrics").text
        assert "kv_cache_usage_perc" not in families
        assert "num_requests_waiting" not in families

        server.terminate()
        assert server.wait_exit(SOON_S) == 0


def test_drain_finishes_what_runs_and_refuses_the_rest(tiny_model: Path) -> None:
    with EngineServer(tiny_model) as server, httpx.Client() as idle_keep_alive:
        server.wait_ready()
        idle_keep_alive.get(f"{server.url}/health")
        assert server.http.post(f"{server.admin_url}/drain").json() == {"draining": True, "in_flight": 0}
        assert server.http.get(f"{server.admin_url}/readyz").status_code == 503
        assert server.capacity()["phase"] == "Draining"
        assert post(server, LONG).json()["error"]["code"] == "draining"
        assert server.http.post(f"{server.admin_url}/undrain").json()["draining"] is False
        assert server.http.get(f"{server.admin_url}/readyz").status_code == 200

        running = in_background(lambda: post(server, {**LONG, "max_tokens": 600}))
        server.wait_capacity(in_flight=1)
        server.terminate()
        server.wait_capacity(draining=True)
        undrained = server.http.post(f"{server.admin_url}/undrain")
        assert (undrained.status_code, undrained.json()) == (409, {"draining": True, "in_flight": 1})
        refused = post(server, LONG)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        assert server.http.get(f"{server.admin_url}/startupz").status_code == 200
        answer = running.result(60)
        ended_s = time.monotonic()

        assert answer.status_code == 200
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        assert answer.json()["usage"]["completion_tokens"] == 600
        assert server.wait_exit() == 0
        assert time.monotonic() - ended_s < SOON_S


def test_the_drain_timeout_aborts_and_says_so(tiny_model: Path) -> None:
    with EngineServer(tiny_model, server={"drain_timeout_s": 0.3}) as server:
        server.wait_ready()
        whole = in_background(lambda: post(server, LONG))
        stream = in_background(lambda: post(server, {**LONG, "stream": True}))
        server.wait_capacity(in_flight=2)
        time.sleep(0.3)
        server.terminate()

        assert server.wait_exit() == 0
        body = whole.result(5).json()
        assert body["choices"][0]["finish_reason"] == "abort"
        assert 0 < body["usage"]["completion_tokens"] < 4000
        events = stream.result(5).text
        assert events.count('"finish_reason":"abort"') == 1
        assert events.endswith("data: [DONE]\n\n")


def test_a_second_signal_ends_it_at_once(tiny_model: Path) -> None:
    with EngineServer(tiny_model) as server:
        server.wait_ready()
        running = in_background(lambda: post(server, LONG))
        server.wait_capacity(in_flight=1)
        server.process.send_signal(signal.SIGINT)
        server.wait_capacity(draining=True)
        began_s = time.monotonic()
        server.process.send_signal(signal.SIGINT)

        assert server.wait_exit() == 0
        assert time.monotonic() - began_s < SOON_S
        assert running.result(5).json()["choices"][0]["finish_reason"] == "abort"


def test_a_dead_core_ends_everything_soon(tiny_model: Path) -> None:
    with EngineServer(tiny_model) as server:
        server.wait_ready()
        whole = in_background(lambda: post(server, LONG))
        stream = in_background(lambda: post(server, {**LONG, "stream": True}))
        server.wait_capacity(in_flight=2)
        time.sleep(0.3)
        live: list[int] = []
        watching = threading.Thread(target=lambda: watch_liveness(server, live))
        watching.start()
        while not live:
            time.sleep(0.01)
        began_s = time.monotonic()
        os.kill(server.core_process_id(), signal.SIGKILL)

        assert server.wait_exit() == 1
        assert time.monotonic() - began_s < SOON_S
        watching.join()
        assert live[0] == 200
        assert whole.result(5).status_code == 503
        assert whole.result(5).json()["error"]["code"] == "engine_dead"
        events = stream.result(5).text
        assert '"finish_reason":"' not in events
        assert "[DONE]" not in events
        assert '"code":"engine_dead"' in events.rstrip().rpartition("\n\n")[2]
        assert "signal 9" in server.read_log()


def test_a_core_killed_while_loading_is_a_crash_and_no_mistake(tiny_model: Path) -> None:
    with SlowTokenizerServer(tiny_model) as server:
        server.wait_listening()
        server.wait_capacity(phase="Loading")
        os.kill(server.core_process_id(), signal.SIGKILL)

        assert server.wait_exit(SOON_S) == 1
        assert "the engine core ended unexpectedly (signal 9)" in server.read_log().splitlines()[-1]


def watch_liveness(server: EngineServer, seen: list[int]) -> None:
    while True:
        try:
            seen.append(server.http.get(f"{server.admin_url}/livez").status_code)
        except httpx.HTTPError:
            return


def test_a_stalled_core_is_not_live(tiny_model: Path) -> None:
    with EngineServer(tiny_model, server={"stall_timeout_s": 1.0}) as server:
        server.wait_ready()
        core = server.core_process_id()
        os.kill(core, signal.SIGSTOP)
        try:
            time.sleep(1.2)
            assert server.http.get(f"{server.admin_url}/livez").status_code == 200, "an idle core need not make steps"
            running = in_background(lambda: post(server, {**LONG, "max_tokens": 5}))
            server.wait_capacity(in_flight=1)
            assert server.http.get(f"{server.admin_url}/livez").status_code == 200
            time.sleep(1.2)
            assert server.http.get(f"{server.admin_url}/livez").status_code == 503
        finally:
            os.kill(core, signal.SIGCONT)
        assert running.result(20).status_code == 200
        assert server.http.get(f"{server.admin_url}/livez").status_code == 200


def test_a_key_guards_the_api_alone(tiny_model: Path) -> None:
    with EngineServer(tiny_model, server={"api_keys": ["secret-ü", "second"]}) as server:
        server.wait_ready()
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic c2VjcmV0"}):
            refused = server.http.get(f"{server.url}/v1/models", headers=headers)
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "invalid_api_key"
            assert refused.headers["www-authenticate"] == "Bearer"
        for key in ("secret-ü", "second"):
            allowed = {b"authorization": f"Bearer {key}".encode()}
            assert server.http.get(f"{server.url}/v1/models", headers=allowed).status_code == 200
        for path in ("/health", "/metrics", "/version", "/load", "/ping", "/openapi.json"):
            assert server.http.get(server.url + path).status_code == 200
        server.terminate()
        server.wait_exit()
        assert "second" not in server.read_log().replace("seconds", "")


def test_a_queue_that_is_full_says_when_to_return(tiny_model: Path) -> None:
    with EngineServer(tiny_model, engine={"max_num_seqs": 1, "max_num_queued_reqs": 1}) as server:
        server.wait_ready()
        response = post(server, {**LONG, "prompt": ["a"] * 5, "max_tokens": 500})

        assert response.status_code == 503
        assert response.json()["error"]["code"] == "queue_full"
        assert int(response.headers["retry-after"]) >= 1
        server.wait_capacity(timeout_s=2, in_flight=0, running=0, queue_depth=0, blocks_active=0)
        assert (
            'admission_rejections_total{engine="0",model_name="tiny",reason="queue_requests"}'
            in server.http.get(f"{server.url}/metrics").text
        )


@pytest.mark.parametrize("flag", ["port", "admin_port"])
def test_a_port_in_use_is_named(tiny_model: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with EngineServer(tiny_model, server={flag: port}) as server:
            assert server.wait_exit() == 2
            log = server.read_log()
    assert f"port {port} is in use" in log
    assert f"--{flag.replace('_', '-')}" in log
    assert "Traceback" not in log


def test_a_model_that_does_not_exist_ends_with_one_sentence(tmp_path: Path) -> None:
    with EngineServer(tmp_path / "nothing") as server:
        assert server.wait_exit(60) == 2
        log = server.read_log()
    assert str(tmp_path / "nothing") in log.splitlines()[-1]
    assert "Traceback" not in log


def test_the_api_process_stays_free_of_torch(engine: EngineServer) -> None:
    maps = Path(f"/proc/{engine.process.pid}/maps").read_text()
    assert "libtorch" not in maps
