"""What a plan makes the best of: with the objective memory, the fewest bytes that serve the load."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet.capacity import CapacityPlan, DoesNotFit, Objective, ObjectiveOutOfReach, make_plan
from pagefleet.capacity.accelerators import GIB
from tests.autoscaler.builders import EIGHT_BILLION, FUTURE_CUDA, SMALL, request

WORKLOADS = st.fixed_dictionaries(
    {},
    optional={
        "rate_per_s": st.floats(min_value=0.01, max_value=200),
        "itl_s": st.floats(min_value=0.01, max_value=1),
        "ttft_s": st.floats(min_value=0.05, max_value=10),
    },
)
KNOBS = st.fixed_dictionaries(
    {},
    optional={
        "max_num_seqs": st.integers(min_value=1, max_value=512),
        "max_model_len": st.integers(min_value=800, max_value=2048),
    },
)


def plan_for(objective: Objective, **options: Any) -> CapacityPlan:
    return make_plan(replace(request(**options), objective=objective))


def reasons(made: CapacityPlan) -> dict[str, str]:
    return {choice.knob: choice.reason for choice in made.choices}


@settings(max_examples=80, deadline=None)
@given(memory=st.integers(2**30, 200 * GIB), workload=WORKLOADS, knobs=KNOBS, small=st.booleans())
def test_the_least_memory_serves_the_load_as_most_does(
    memory: int, workload: dict[str, Any], knobs: dict[str, Any], small: bool
) -> None:
    options = {**knobs, "model": SMALL if small else EIGHT_BILLION, "workload": workload, "memory_bytes": memory}
    try:
        most = plan_for(Objective.THROUGHPUT, **options)
    except (DoesNotFit, ObjectiveOutOfReach):
        return
    least = plan_for(Objective.MEMORY, **options)
    assert least.predicted_bytes <= most.predicted_bytes + most.footprint.block_bytes, "where all of it is needed"
    assert least.predicted_bytes <= least.footprint.usable_bytes
    assert least.knobs.gpu_memory_utilization <= most.knobs.gpu_memory_utilization
    assert least.max_model_len >= most.max_model_len, "no sequence is refused to save memory"
    assert least.kv_tokens >= least.max_model_len
    # A shorter step leaves more to the cache, which may spare a replica.
    assert (least.replicas or 0) <= (most.replicas or 0)
    if "rate_per_s" in workload:
        assert least.replicas is not None
        assert (least.service.requests_per_s or 0) * 0.85 * least.replicas >= workload["rate_per_s"] * (1 - 1e-9)
    for name in ("itl_s", "ttft_s"):
        if name in workload:
            assert getattr(least.service, name) <= workload[name]


def test_the_least_memory_grows_with_the_rate_and_says_what_for() -> None:
    made = [
        plan_for(Objective.MEMORY, workload={"rate_per_s": rate, "itl_s": 0.05}, max_model_len=4096)
        for rate in (1.0, 5.0, 20.0)
    ]
    assert sorted({each.predicted_bytes for each in made}) == [each.predicted_bytes for each in made]
    told = reasons(made[1])
    assert "at once serve 5 requests/s with a reserve of 15%" in told["max-num-seqs"]
    assert told["gpu-memory-utilization"].startswith("the least that holds the load, with 5% for what was predicted")
    assert told["max-num-batched-tokens"].startswith("the fewest with which the prompts of ")
    assert made[0].knobs.max_num_batched_tokens < made[2].knobs.max_num_batched_tokens < 2048
    assert made[1].limit.endswith("the load needs no more")


def test_without_a_load_one_longest_sequence_is_it() -> None:
    made = plan_for(Objective.MEMORY, max_model_len=8192)
    assert made.kv_tokens < 2 * 8192
    assert (
        "at once are in a cache for one sequence of 8,192 tokens, and no rate is given" in reasons(made)["max-num-seqs"]
    )


def test_the_least_memory_takes_fewer_bits_where_they_are_allowed() -> None:
    options = {"engine": FUTURE_CUDA, "max_model_len": 65_536, "workload": {"rate_per_s": 1.0}}
    plain = plan_for(Objective.MEMORY, **options)
    made = plan_for(Objective.MEMORY, weights=("none", "int8"), kv_cache=("auto", "int8", "k4v3"), **options)
    assert (made.knobs.weights, made.knobs.kv_cache) == ("int8", "k4v3")
    assert made.predicted_bytes < 0.6 * plain.predicted_bytes
    assert reasons(made)["quantization"].startswith("takes least memory of none, int8, or within 10 %")
    assert all("x the memory" in each.effect for each in made.rejected)
    assert "takes more memory" in {each.obstacle for each in made.rejected}


def test_what_is_set_is_kept_although_less_would_do() -> None:
    made = plan_for(Objective.MEMORY, gpu_memory_utilization=0.8, max_num_seqs=64, max_num_batched_tokens=4096)
    knobs = made.knobs
    assert (knobs.gpu_memory_utilization, knobs.max_num_seqs, knobs.max_num_batched_tokens) == (0.8, 64, 4096)
    assert all(reasons(made)[name].startswith("you set it") for name in ("gpu-memory-utilization", "max-num-seqs"))


def test_latency_means_twice_what_a_lone_request_takes() -> None:
    made, most = plan_for(Objective.LATENCY), plan_for(Objective.THROUGHPUT)
    step = made.step
    assert step is not None
    alone_s = step.base_s + step.decode_s(640) + step.prefill_token_s * 512 / 256
    assert made.service.itl_s == pytest.approx(0.85 * 2 * alone_s)
    assert made.service.concurrency < most.service.concurrency
    stated = plan_for(Objective.LATENCY, workload={"itl_s": 0.05})
    assert stated.service == plan_for(Objective.THROUGHPUT, workload={"itl_s": 0.05}).service
