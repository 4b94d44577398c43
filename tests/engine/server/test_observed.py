"""What `/metrics` and `/capacity` say equals what clients saw."""

import json

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagefleet.api.capacity import CapacityReport
from pagefleet.api.metrics import METRICS
from pagefleet.engine.bench.server_metrics import Growth, Samples, metric_value, parse_metrics
from tests.support.engine_server import EngineServer
from tests.support.exported_metrics import differences


def scrape(url: str) -> Samples:
    text = httpx.get(f"{url}/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["model_name"] == "tiny"
            assert sample.labels["engine"] == "0"
    return parse_metrics(text)


@pytest.fixture
def before(engine: EngineServer) -> Samples:
    engine.wait_capacity(in_flight=0, running=0)
    return scrape(engine.admin_url)


def stream_counts(http: httpx.Client, body: dict[str, object]) -> tuple[int, int]:
    """Run a stream; return its chunks with a choice, and its completion tokens."""
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    lines = http.post("/v1/completions", json=body).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return sum(bool(chunk["choices"]) for chunk in chunks), chunks[-1]["usage"]["completion_tokens"]


def test_a_live_engine_exports_the_table(engine: EngineServer, http: httpx.Client) -> None:
    http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
    http.post("/v1/completions", json={"prompt": "x", "max_tokens": 10**6})
    assert differences(http.get("/metrics").text, METRICS) == []


def test_aliases_have_the_same_values(engine: EngineServer, before: Samples) -> None:
    suffixes = ("", "_total", "_count", "_sum", "_bucket")
    for metric in METRICS:
        if metric.vllm_name is None:
            continue
        for (name, labels), number in before.items():
            for suffix in suffixes:
                if name == metric.name + suffix:
                    assert before[metric.vllm_name + suffix, labels] == number


def test_counts_equal_what_clients_saw(engine: EngineServer, http: httpx.Client, before: Samples) -> None:
    greedy: dict[str, object] = {"prompt": "once upon", "temperature": 0, "max_tokens": 30, "ignore_eos": True}
    plain = http.post("/v1/completions", json=greedy).json()
    text = plain["choices"][0]["text"]
    stop = next(text[at] for at in range(len(text) // 2, len(text)) if text[at] != "\ufffd")
    tokens = [plain["usage"]["completion_tokens"]]
    prompt_tokens = plain["usage"]["prompt_tokens"]
    seen = [stream_counts(http, greedy), stream_counts(http, {**greedy, "stop": stop})]
    several_chunks, several_tokens = stream_counts(http, {**greedy, "prompt": ["once upon"] * 3})

    grew = Growth(before, scrape(engine.admin_url))

    all_tokens = tokens[0] + sum(count for _, count in seen) + several_tokens
    assert grew("vllm:generation_tokens_total") == grew("pagefleet_generation_tokens_total") == all_tokens
    assert grew("vllm:prompt_tokens_total") == 6 * prompt_tokens
    assert grew("vllm:request_success_total", finished_reason="length") == 5
    assert grew("vllm:request_success_total", finished_reason="stop") == 1
    assert grew("vllm:time_to_first_token_seconds_count") == 6
    for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time"):
        assert grew(f"vllm:{name}_seconds_count") == 6
    assert grew("vllm:request_generation_tokens_sum") == all_tokens
    assert grew("vllm:request_generation_tokens_count") == 6
    # Every chunk after a choice's first one is one gap that a client could measure.
    gaps = (tokens[0] - 1) + sum(chunks - 1 for chunks, _ in seen) + (several_chunks - 3)
    assert grew("vllm:inter_token_latency_seconds_count") == gaps
    assert grew("pagefleet_step_time_seconds_count") == grew("vllm:iteration_tokens_total_count") > 0


def test_refusals_are_counted(engine: EngineServer, http: httpx.Client, before: Samples) -> None:
    http.post("/v1/completions", json={"prompt": "x", "max_tokens": 10**6})
    http.post("/v1/completions", json={"prompt": "x", "n": 0})
    http.get("/v1/nothing")

    grew = Growth(before, scrape(engine.admin_url))

    assert grew("vllm:admission_rejections_total", reason="too_long") == 1
    assert grew("pagefleet_request_errors_total", code="400") == 2
    assert grew("pagefleet_request_errors_total", code="404") == 1
    assert grew("vllm:prompt_tokens_total") == 0


def test_a_lost_client_is_an_abort(engine: EngineServer, http: httpx.Client, before: Samples) -> None:
    body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_bytes())
    engine.wait_capacity(in_flight=0)

    grew = Growth(before, scrape(engine.admin_url))

    assert grew("vllm:request_success_total", finished_reason="abort") == 1
    assert grew("vllm:e2e_request_latency_seconds_count") == 0


def test_capacity_is_whole_and_the_blocks_add_up(engine: EngineServer, http: httpx.Client) -> None:
    http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
    engine.wait_capacity(in_flight=0, running=0)
    report = CapacityReport.model_validate(engine.capacity())

    assert report.phase == "Ready"
    assert report.model == "tiny"
    assert (report.pod_uid, report.block_size, report.max_model_len) == ("pod-1234", 16, 4096)
    assert (report.queue_depth, report.queue_age_s, report.draining) == (0, 0.0, False)
    assert report.blocks_active is not None
    assert report.blocks_cached is not None
    assert report.blocks_free is not None
    assert report.blocks_active + report.blocks_cached + report.blocks_free == report.blocks_total
    assert report.step_time_s
    assert report.generation_tokens_total
    assert {"download", "load", "tokenizer"} <= report.startup_stage_seconds.keys()
    unset = {name for name in CapacityReport.model_fields if getattr(report, name) is None}
    assert unset <= {"progress", "detail"}


def test_memory_and_rate_are_shown(engine: EngineServer, http: httpx.Client) -> None:
    http.post("/v1/completions", json={"prompt": "x", "max_tokens": 50, "ignore_eos": True})
    samples = scrape(engine.url)

    assert 0 < metric_value(samples, "pagefleet_memory_utilization_ratio") < 1
    assert metric_value(samples, "pagefleet_generation_tokens_per_second") >= 10
    assert metric_value(samples, "vllm:kv_cache_usage_perc") == 0
