"""Generated requests on a live engine: whatever comes, it answers rightly or refuses, and nothing stays behind.

`PAGEFLEET_FUZZ_REQUESTS=10000 pytest tests/e2e/test_fuzz.py` sends more, and others every time.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.engine_server import EngineServer
from tests.support.request_strategies import Request, document_requests, field_requests
from tests.support.tiny_models import make_tiny_model

FEW_REQUESTS = 1500
REQUESTS = int(os.environ.get("PAGEFLEET_FUZZ_REQUESTS", FEW_REQUESTS))
DOCUMENT_SHARE = 5
"""One request in so many comes from the OpenAPI document, whose generator is slow."""
TOGETHER = 8
"""Requests at once."""
TIMEOUT_S = 300
"""A machine that does much else is slow; a hang is for ever."""
FINISH_REASONS = {"stop", "length"}
REFUSALS = {400, 404, 405, 413, 415}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """An engine whose cache holds a few sequences, so that others wait and some are preempted."""
    folder = make_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=256)
    engine = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "kv_cache_memory_bytes": 160 * 1024}
    with EngineServer(folder, engine=engine) as running:
        yield running.wait_ready()


@pytest.fixture(scope="module")
def answers() -> Counter[int]:
    """How often each status came."""
    return Counter()


def send(client: httpx.Client, request: Request) -> httpx.Response | None:
    """Send one request; None when its client left."""
    headers = {"content-type": "application/json", **request.headers}
    try:
        if request.fate == "read":
            return client.request(request.method, request.path, content=request.content, headers=headers)
        with client.stream(request.method, request.path, content=request.content, headers=headers) as response:
            if request.fate == "leave_in_between":
                next(response.iter_raw(), None)
    except httpx.HTTPError as error:
        error.add_note(str(request))
        raise
    return None


def check(request: Request, response: httpx.Response) -> None:
    said = f"{request} got {response.status_code}: {response.text[:300]}"
    if response.status_code == 503:
        assert request.path in ("/health", "/ping") or int(response.headers["retry-after"]) > 0, said
    elif response.status_code != 200:
        assert response.status_code in REFUSALS, said
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}, said
        assert error["message"], said
        assert "Traceback" not in error["message"], said
    elif request.path.endswith("/completions"):
        check_answer(request, response, said)


def check_answer(request: Request, response: httpx.Response, said: str) -> None:
    if response.headers["content-type"].startswith("application/json"):
        body = response.json()
        ends = {choice["index"]: choice["finish_reason"] for choice in body["choices"]}
        usage = body["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], said
    else:
        *events, done = response.text.removesuffix("\n\n").split("\n\n")
        assert done == "data: [DONE]", said
        ends = finish_reasons([json.loads(event.removeprefix("data: ")) for event in events])
    assert ends, said
    assert set(ends.values()) <= FINISH_REASONS, said


def finish_reasons(chunks: list[dict[str, Any]]) -> dict[int, str]:
    """Return how each choice ended; every one ends once."""
    ends: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            assert choice["index"] not in ends, "nothing comes behind an end"
            if choice["finish_reason"] is not None:
                ends[choice["index"]] = choice["finish_reason"]
    return ends


@pytest.mark.parametrize(
    ("requests", "strategy"),
    [
        pytest.param(REQUESTS // DOCUMENT_SHARE, document_requests(), id="document"),
        pytest.param(REQUESTS - REQUESTS // DOCUMENT_SHARE, field_requests(), id="fields"),
    ],
)
@pytest.mark.timeout(3600)
def test_generated_requests(
    server: EngineServer,
    answers: Counter[int],
    requests: int,
    strategy: st.SearchStrategy[Request],
    measured: Callable[[str], None],
) -> None:
    sent: Counter[int] = Counter()

    with httpx.Client(base_url=server.url, timeout=TIMEOUT_S) as client, ThreadPoolExecutor(TOGETHER) as pool:

        @settings(
            max_examples=max(1, requests // TOGETHER),
            deadline=None,
            database=None,
            derandomize=requests < FEW_REQUESTS,  # the gate asks the same every time, a longer run something new
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.lists(strategy, min_size=TOGETHER, max_size=TOGETHER))
        def send_together(batch: list[Request]) -> None:
            for request, response in zip(batch, pool.map(lambda one: send(client, one), batch), strict=True):
                sent[0 if response is None else response.status_code] += 1
                if response is not None:
                    check(request, response)

        send_together()

    answers += sent
    report = server.wait_capacity(timeout_s=90, blocks_active=0, running=0, queue_depth=0, in_flight=0)
    assert report["blocks_free"] + report["blocks_cached"] == report["blocks_total"]
    assert server.process.poll() is None
    assert sent[200] > sum(sent.values()) / 10, "too few requests mean something"
    assert sum(count for status, count in sent.items() if 400 <= status < 500), "no request was refused"
    measured(f"{sum(sent.values())} requests, by status (0: the client left): {dict(sorted(sent.items()))}")
