"""Nothing is lost between clients and metrics: with preemption, stop strings, prompts alone, lost clients, refusals."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from pagefleet.engine.bench.server_metrics import Growth
from tests.engine.server.test_observed import scrape
from tests.support.engine_server import EngineServer
from tests.support.tiny_models import make_tiny_model

BLOCKS = 30
PROMPT = [0, *range(40, 70)]
FOLLOWING: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 90, "temperature": 1, "seed": 3, "ignore_eos": True}
KINDS: tuple[dict[str, Any], ...] = (
    {"stream": False},
    {"stream": True},
    {"stream": True, "prompt": [PROMPT, PROMPT[:9]]},
    {"stream": False, "stop": ["a", "e", "t"]},
    {"stream": True, "logit_bias": {"1": 100}, "ignore_eos": False, "min_tokens": 2},
    {"stream": False, "echo": True, "max_tokens": 0, "logprobs": 1},
)
"""Requests whose clients read to the end."""
LOST = 6
LOST_TOKENS = 200
REFUSED = 3


@dataclass
class Seen:
    """What the clients of some requests saw."""

    sequences: int = 0
    with_tokens: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    stops: int = 0

    def add(self, body: dict[str, Any], ends: list[str], first_tokens: int) -> None:
        """Add one answer."""
        self.sequences += len(ends)
        self.with_tokens += first_tokens
        self.stops += ends.count("stop")
        self.prompt_tokens += body["usage"]["prompt_tokens"]
        self.completion_tokens += body["usage"]["completion_tokens"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """An engine with room for about four of these sequences."""
    folder = make_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=256)
    bytes_per_block = 2 * 2 * 2 * 8 * 4 * 16  # keys and values, layers, heads, width, float32, tokens
    with EngineServer(folder, engine={"kv_cache_memory_bytes": BLOCKS * bytes_per_block}) as running:
        yield running.wait_ready()


def read(server: EngineServer, kind: dict[str, Any]) -> tuple[dict[str, Any], list[str], int]:
    """Run one request; return its last body with usage, its ends, and how many choices had a token."""
    body = {**FOLLOWING, **kind, "return_token_ids": True}
    if kind["stream"]:
        body["stream_options"] = {"include_usage": True}
    response = server.http.post(f"{server.url}/v1/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text
    chunks = (
        [response.json()]
        if not kind["stream"]
        else [
            json.loads(event.removeprefix("data: "))
            for event in response.text.split("\n\n")
            if event.startswith("data: {")
        ]
    )
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    ends = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return chunks[-1], ends, len({choice["index"] for choice in choices if choice["token_ids"]})


def lose(server: EngineServer) -> None:
    """Begin to read a long answer and leave."""
    body = {**FOLLOWING, "stream": True, "max_tokens": LOST_TOKENS}
    with server.http.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120) as response:
        next(response.iter_raw())


def test_counts_are_conserved(small: EngineServer) -> None:
    assert small.capacity()["blocks_total"] == BLOCKS
    before = scrape(small.admin_url)
    seen = Seen()

    with ThreadPoolExecutor(32) as pool:
        lost = [pool.submit(lose, small) for _ in range(LOST)]
        running = [pool.submit(read, small, kind) for kind in KINDS * 3]
        refused = [
            pool.submit(small.http.post, f"{small.url}/v1/completions", json={**FOLLOWING, "max_tokens": 10**6})
            for _ in range(REFUSED)
        ]
        for each in running:
            seen.add(*each.result())
        for ended in lost:
            ended.result()
        assert {answer.result().status_code for answer in refused} == {400}
    report = small.wait_capacity(timeout_s=90, in_flight=0, running=0, queue_depth=0, blocks_active=0)
    grew = Growth(before, scrape(small.admin_url))

    assert grew("vllm:num_preemptions_total") > 0, "the cache is too large to prove anything"
    ends = {
        reason: grew("vllm:request_success_total", finished_reason=reason) for reason in ("stop", "length", "abort")
    }
    assert sum(ends.values()) == seen.sequences + LOST, "accepted is finished, by reason"
    late = LOST - ends["abort"]  # clients so slow to leave that their answers were over
    assert 0 <= late < LOST
    assert ends == {"stop": seen.stops, "length": seen.sequences - seen.stops + late, "abort": LOST - late}
    assert grew("vllm:time_to_first_token_seconds_count") == seen.with_tokens + LOST
    assert grew("vllm:request_queue_time_seconds_count") == seen.with_tokens + LOST
    assert grew("vllm:prompt_tokens_total") == seen.prompt_tokens + LOST * len(PROMPT)
    assert grew("vllm:request_prompt_tokens_sum") == seen.prompt_tokens + late * len(PROMPT)
    assert grew("vllm:request_generation_tokens_sum") == seen.completion_tokens + late * LOST_TOKENS
    assert grew("vllm:request_generation_tokens_count") == seen.sequences + late
    assert grew("vllm:generation_tokens_total") >= seen.completion_tokens + LOST
    assert grew("vllm:e2e_request_latency_seconds_count") == seen.sequences + late
    assert grew("vllm:admission_rejections_total", reason="too_long") == REFUSED
    assert grew("pagefleet_request_errors_total", code="400") == REFUSED
    gaps = grew("vllm:inter_token_latency_seconds_count")
    assert gaps == grew("vllm:generation_tokens_total") - grew("vllm:time_to_first_token_seconds_count")
    assert report["blocks_free"] + report["blocks_cached"] == BLOCKS
