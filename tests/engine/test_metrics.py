from importlib import metadata

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagefleet.api.metrics import LABELS, METRICS
from pagefleet.engine.messages import CoreReady, CoreState, MemoryParts, MemoryReport, StepOutputs
from pagefleet.engine.metrics import EngineMetrics
from pagefleet.engine.request_record import start_request


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def a_ready_core() -> CoreReady:
    return CoreReady(
        model="m",
        architecture="LlamaForCausalLM",
        model_impl="native",
        device="cpu",
        dtype="float32",
        kv_cache_dtype="float32",
        plain_slots=0,
        attention_backend="gather-sdpa",
        linear_backend="torch",
        quantization="none",
        vocabulary_size=512,
        max_model_len=100,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        block_size=16,
        blocks_total=10,
        batching="continuous",
        scheduling_policy="fcfs",
        enable_prefix_caching=True,
        block_bytes=100,
        kv_cache_bytes=1000,
        weight_bytes=1000,
        memory_limit_bytes=2000,
        memory=MemoryReport(
            measured=MemoryParts(weights_bytes=1000, activation_bytes=60, runtime_bytes=40, kv_cache_bytes=1000),
            predicted=MemoryParts(weights_bytes=900, activation_bytes=60, runtime_bytes=40, kv_cache_bytes=1000),
        ),
        gpu_memory_utilization=0.9,
        eos_token_ids=[1],
        stage_seconds={"load": 1.5},
        config_hash="abc",
    )


def a_step(number: int, *, step_time_s: float = 0.02, tokens: int = 7) -> StepOutputs:
    state = CoreState(
        blocks_total=10,
        blocks_active=4,
        blocks_cached=1,
        blocks_free=5,
        tokens_active=50,
        running=2,
        queue_depth=3,
        tokens_queued=30,
        waiting_by_reason={"blocks": 2, "sequences": 1},
        queue_age_s=1.5,
        preemptions_total=6,
        prompt_tokens_total=40,
        prefix_query_tokens_total=0,
        prefix_hit_tokens_total=0,
        steps_total=number,
        step_seconds_total=step_time_s * number,
        computed_tokens_total=30,
        kv_tokens_read_total=20,
        sequence_steps_total=10,
        step_time_s=step_time_s,
        step_tokens=tokens,
        memory_used_bytes=500,
        monotonic_s=1.0,
    )
    return StepOutputs(outputs=[], state=state)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> EngineMetrics:
    metrics = EngineMetrics(model_name="m", clock=clock)
    metrics.set_ready(a_ready_core())
    return metrics


def samples(metrics: EngineMetrics) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            rest = [f"{name}={value}" for name, value in sorted(sample.labels.items()) if name not in LABELS]
            found[" ".join([sample.name, *rest])] = sample.value
    return found


def test_nothing_unknown_is_shown(clock: Clock) -> None:
    shown = samples(EngineMetrics(model_name="m", clock=clock))

    names = {name.split()[0] for name in shown}
    assert names == {
        "pagefleet_prompt_tokens_total",
        "vllm:prompt_tokens_total",
        "pagefleet_generation_tokens_total",
        "vllm:generation_tokens_total",
        "pagefleet_request_success_total",
        "vllm:request_success_total",
        "pagefleet_build_info",
    }


def test_every_metric_of_the_table_can_be_shown_with_its_labels(metrics: EngineMetrics) -> None:
    metrics.observe_step(a_step(1))
    metrics.startup_stage_seconds["load"] = 1.5
    metrics.increment("admission_rejections", labels=("too_long",))
    metrics.increment("request_errors", labels=("400",))
    families = {family.name: family for family in text_string_to_metric_families(metrics.exposition().decode())}

    for metric in METRICS:
        for name in filter(None, (metric.name, metric.vllm_name)):
            labels = {label for sample in families[name].samples for label in sample.labels}
            assert labels - {"le"} == set(metric.labels), name
            assert families[name].documentation == metric.help


def test_versions_are_looked_up_once(metrics: EngineMetrics, monkeypatch: pytest.MonkeyPatch) -> None:
    first = metrics.exposition()
    monkeypatch.delattr(metadata, "version")
    assert metrics.exposition() == first


def test_the_state_of_the_core_is_shown(metrics: EngineMetrics) -> None:
    metrics.observe_step(a_step(1))
    shown = samples(metrics)

    assert shown["vllm:num_requests_running"] == 2
    assert shown["vllm:num_requests_waiting"] == 3
    assert shown["vllm:kv_cache_usage_perc"] == 0.4
    assert shown["pagefleet_kv_blocks state=cached"] == 1
    assert shown["vllm:num_preemptions_total"] == 6
    assert shown["pagefleet_memory_utilization_ratio"] == 0.25
    assert shown["pagefleet_queue_age_seconds"] == 1.5
    assert shown["pagefleet_memory_bytes kind=measured part=weights"] == 1000
    assert shown["pagefleet_memory_bytes kind=predicted part=weights"] == 900
    assert shown["pagefleet_memory_drift_ratio"] == pytest.approx(0.05)


def test_a_step_counts_once_however_often_it_is_reported(metrics: EngineMetrics) -> None:
    for number in (1, 1, 2, 2):
        metrics.observe_step(a_step(number, step_time_s=0.02 * number))
    shown = samples(metrics)

    assert shown["pagefleet_step_time_seconds_count"] == 2
    assert shown["vllm:iteration_tokens_total_sum"] == 14
    assert metrics.mean_step_time_s == pytest.approx(0.03)


def test_times_of_a_request(metrics: EngineMetrics, clock: Clock) -> None:
    (record,) = start_request(metrics, arrival_s=99.0, prompt_tokens=11)
    record.output(1, queue_time_s=0.2, prefill_time_s=0.3)
    for _ in range(2):
        clock.now_s += 0.5
        record.output(2, queue_time_s=None, prefill_time_s=None)
    record.finish("stop")
    record.finish("abort")
    shown = samples(metrics)

    assert shown["vllm:time_to_first_token_seconds_sum"] == 1.0
    assert shown["vllm:inter_token_latency_seconds_count"] == 2
    assert shown["vllm:inter_token_latency_seconds_sum"] == 1.0
    assert shown["vllm:request_queue_time_seconds_sum"] == 0.2
    assert shown["vllm:request_prefill_time_seconds_sum"] == 0.3
    assert shown["vllm:request_decode_time_seconds_sum"] == 1.0
    assert shown["vllm:e2e_request_latency_seconds_sum"] == 2.0
    assert shown["vllm:request_time_per_output_token_seconds_count"] == 1
    assert shown["vllm:request_time_per_output_token_seconds_sum"] == 0.25
    assert shown["vllm:request_generation_tokens_sum"] == shown["vllm:generation_tokens_total"] == 5
    assert shown["vllm:request_success_total finished_reason=stop"] == 1
    assert shown["vllm:request_success_total finished_reason=abort"] == 0


def test_buckets_are_cumulative_and_inclusive(metrics: EngineMetrics) -> None:
    for seconds in (0.001, 0.0011, 5000.0):
        metrics.observe("time_to_first_token_seconds", seconds)
    shown = samples(metrics)

    name = "pagefleet_time_to_first_token_seconds_bucket"
    assert [shown[f"{name} le={bound}"] for bound in ("0.001", "0.005", "2560.0", "+Inf")] == [1, 2, 2, 3]


def test_the_rate_forgets(metrics: EngineMetrics, clock: Clock) -> None:
    (record,) = start_request(metrics, arrival_s=clock.now_s, prompt_tokens=1)
    record.output(10, queue_time_s=None, prefill_time_s=None)
    clock.now_s += 4
    record.output(10, queue_time_s=None, prefill_time_s=None)

    assert samples(metrics)["pagefleet_generation_tokens_per_second"] == 4.0
    clock.now_s += 2
    assert samples(metrics)["pagefleet_generation_tokens_per_second"] == 2.0
    clock.now_s += 60
    assert samples(metrics)["pagefleet_generation_tokens_per_second"] == 0.0


def test_an_end_without_a_token_is_no_first_token(metrics: EngineMetrics) -> None:
    (record,) = start_request(metrics, arrival_s=99.0, prompt_tokens=1)
    record.output(0, queue_time_s=None, prefill_time_s=None)
    record.finish("abort")
    shown = samples(metrics)

    assert shown["vllm:time_to_first_token_seconds_count"] == 0
    assert shown["vllm:e2e_request_latency_seconds_count"] == 0


def test_a_request_of_three_choices_counts_once(metrics: EngineMetrics, clock: Clock) -> None:
    first, second, third = start_request(metrics, arrival_s=99.0, prompt_tokens=11, choices=3)
    for record in (first, second, third):
        record.output(1, queue_time_s=0.25, prefill_time_s=0.5)
        clock.now_s += 0.01
    second.output(2, queue_time_s=None, prefill_time_s=None)
    second.finish("length")
    second.finish("abort")
    first.finish("stop")
    assert "vllm:request_success_total" not in str(
        {name for name, value in samples(metrics).items() if value and "request_success" in name}
    ), "the request ends with its last choice"
    third.finish("stop")

    found = samples(metrics)
    assert found["vllm:prompt_tokens_total"] == 11
    assert found["vllm:generation_tokens_total"] == 5
    assert found["vllm:time_to_first_token_seconds_count"] == 1
    assert found["vllm:inter_token_latency_seconds_count"] == 1
    assert found["vllm:e2e_request_latency_seconds_count"] == 1
    assert found["vllm:request_generation_tokens_sum"] == 5
    assert {name: value for name, value in found.items() if value and "vllm:request_success" in name} == {
        "vllm:request_success_total finished_reason=length": 1
    }


def test_what_has_ended_is_counted_whatever_ended_it(metrics: EngineMetrics, clock: Clock) -> None:
    for tokens, reason in ((3, "length"), (2, "abort"), (1, "stop"), (0, "error")):
        (record,) = start_request(metrics, arrival_s=clock.now_s - 1.9, prompt_tokens=5)
        for _ in range(tokens):
            record.output(1, queue_time_s=None, prefill_time_s=None)
            clock.now_s += 0.09
        assert metrics.finished_total == metrics.choices_total - 1
        record.finish(reason)
        record.finish("abort")
    assert (metrics.choices_total, metrics.finished_total, metrics.finished_tokens_total) == (4, 4, 6)

    ttft, gaps = (
        metrics.latencies(f"{key}_seconds") for key in ("time_to_first_token", "request_time_per_output_token")
    )
    assert ttft is not None
    assert gaps is not None
    assert (ttft.total, ttft.above(1.5), ttft.above(2.0)) == (3, 3, 0)
    assert (gaps.total, gaps.above(0.075), gaps.above(0.1)) == (2, 2, 0), "one token has no gap"


def test_latencies_are_unknown_before_the_core_is_up() -> None:
    assert EngineMetrics(model_name="m").latencies("time_to_first_token_seconds") is None
