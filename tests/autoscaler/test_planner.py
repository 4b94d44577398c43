"""Plans: they are functions of their arguments, stay within the budget, grow with memory, and say what limits them."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet.capacity import (
    CannotPlan,
    CapacityPlan,
    DoesNotFit,
    Lengths,
    ObjectiveOutOfReach,
    PinnedKnobs,
    make_plan,
    read_model,
)
from pagefleet.capacity.accelerators import GIB
from tests.autoscaler.builders import EIGHT_BILLION, FUTURE_CUDA, PAST_CUDA, SMALL, plan, request
from tests.support import checkpoints

MEMORY = st.integers(min_value=2**20, max_value=200 * GIB)
KNOBS = st.fixed_dictionaries(
    {},
    optional={
        "gpu_memory_utilization": st.floats(min_value=0.05, max_value=1),
        "max_num_seqs": st.integers(min_value=1, max_value=512),
        "max_model_len": st.integers(min_value=800, max_value=2048),
    },
)
FORMATS = st.fixed_dictionaries(
    {},
    optional={
        "weights": st.sets(st.sampled_from(["none", "int8", "int4"]), min_size=1).map(tuple),
        "kv_cache": st.sets(st.sampled_from(["auto", "int8", "int4", "k4v3"]), min_size=1).map(tuple),
    },
)
WORKLOADS = st.fixed_dictionaries(
    {},
    optional={
        "itl_s": st.floats(min_value=0.001, max_value=1),
        "ttft_s": st.floats(min_value=0.01, max_value=10),
        "shared_prefix": st.floats(min_value=0, max_value=0.9),
    },
)


def try_plan(**options: Any) -> CapacityPlan | None:
    try:
        return plan(**options)
    except (DoesNotFit, ObjectiveOutOfReach):
        return None


@settings(max_examples=60, deadline=None)
@given(memory=MEMORY, knobs=KNOBS, formats=FORMATS, workload=WORKLOADS, small=st.booleans())
def test_never_over_the_budget(
    memory: int, knobs: dict[str, Any], formats: dict[str, Any], workload: dict[str, Any], small: bool
) -> None:
    options = {**knobs, **formats, "workload": workload, "memory_bytes": memory, "engine": FUTURE_CUDA}
    made = try_plan(model=SMALL if small else EIGHT_BILLION, **options)
    if made is None:
        return
    used = made.footprint
    assert made.predicted_bytes <= used.usable_bytes <= memory
    assert made.kv_tokens >= made.max_model_len >= 1
    assert made.service.concurrency >= 1
    assert made.service.concurrency <= made.knobs.max_num_seqs
    assert made.service.concurrency * made.knobs.block_size <= made.kv_tokens
    if "itl_s" in workload:
        assert made.service.itl_s is not None
        assert made.service.itl_s <= workload["itl_s"]
    if "ttft_s" in workload:
        assert made.service.ttft_s is not None
        assert made.service.ttft_s <= workload["ttft_s"]


@settings(max_examples=60, deadline=None)
@given(memory=MEMORY, more=st.integers(min_value=0, max_value=50 * GIB), knobs=KNOBS, workload=WORKLOADS)
def test_more_memory_never_serves_less(memory: int, more: int, knobs: dict[str, Any], workload: dict[str, Any]) -> None:
    options = {**knobs, "model": EIGHT_BILLION, "workload": workload}
    less, enough = (try_plan(**options, memory_bytes=size) for size in (memory, memory + more))
    if less is None:
        return
    assert enough is not None
    # Fewer places are taken where they reach 99 % of the best rate, hence the hundredth.
    assert (enough.service.requests_per_s or 0) >= 0.99 * (less.service.requests_per_s or 0)
    assert enough.max_model_len >= less.max_model_len or enough.knobs.max_num_seqs > less.knobs.max_num_seqs
    if "max_num_seqs" in knobs:
        assert enough.blocks >= less.blocks
        assert enough.max_model_len >= less.max_model_len


@settings(max_examples=20, deadline=None)
@given(memory=MEMORY, formats=FORMATS, workload=WORKLOADS)
def test_equal_arguments_give_equal_plans(memory: int, formats: dict[str, Any], workload: dict[str, Any]) -> None:
    options = {**formats, "workload": workload, "memory_bytes": memory, "engine": FUTURE_CUDA}
    assert try_plan(**options) == try_plan(**options)


def test_what_is_allowed_but_not_there_is_never_chosen_over_what_is() -> None:
    made = plan(engine=PAST_CUDA, kv_cache=("auto", "int8", "k4v3"), weights=("none", "int4"), memory_bytes=30 * GIB)
    assert (made.knobs.weights, made.knobs.kv_cache, made.unavailable) == ("none", "bf16", ())
    assert {each.obstacle.split(":")[0] for each in made.rejected} == {"not in this engine yet"}


def test_a_format_that_is_the_only_one_allowed_is_planned_and_named_as_missing() -> None:
    made = plan(engine=PAST_CUDA, kv_cache=("int4",), count=2)
    assert made.knobs.kv_cache == "int4"
    assert made.unavailable == ("int4 KV cache", "tensor parallelism")


def test_accuracy_is_given_up_for_a_real_gain_only() -> None:
    """With much memory the latency objective limits, and for short texts a smaller cache format gains nothing."""
    formats = {"engine": FUTURE_CUDA, "kv_cache": ("auto", "int8")}
    roomy = plan(**formats, prompt_tokens=64, output_tokens=64, workload={"itl_s": 0.02})
    tight = plan(**formats, memory_bytes=22 * GIB, prompt_tokens=2000)
    assert (roomy.knobs.kv_cache, roomy.service.binding_limit) == ("bf16", "inter-token latency")
    assert roomy.rejected[0].obstacle == "gains less than 10 %, and loses more accuracy"
    assert tight.knobs.kv_cache == "int8"


def test_near_misses_say_what_is_in_the_way() -> None:
    made = plan(memory_bytes=20 * GIB, engine=PAST_CUDA)
    assert made.service.binding_limit == "KV memory"
    changes = {each.change: each.obstacle for each in made.near_misses}
    assert changes["KV cache k4v3"] == "not in this engine yet: k4v3 KV cache"
    assert changes["weights int4"] == "not in this engine yet: int4 weights"
    future = plan(memory_bytes=20 * GIB, engine=FUTURE_CUDA)
    assert {each.change: each.obstacle for each in future.near_misses}["KV cache k4v3"].startswith(
        "loses some accuracy"
    )


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"memory_bytes": 20 * GIB}, "KV memory"),
        ({"workload": {"itl_s": 0.03}}, "inter-token latency"),
        ({"workload": {"ttft_s": 0.1}, "prompt_tokens": 2000}, "time to first token"),
        ({"max_num_seqs": 4}, "max_num_seqs"),
    ],
)
def test_the_binding_limit(options: dict[str, Any], limit: str) -> None:
    made = plan(**options)
    assert made.service.binding_limit == limit
    assert made.limit.startswith(limit)


def test_the_latency_closed_form_meets_its_objective_exactly() -> None:
    """At the concurrency of the limit, the mean inter-token time is 85 % of the objective."""
    made = plan(workload={"itl_s": 0.03})
    assert made.service.itl_s == pytest.approx(0.85 * 0.03)


def test_what_misses_the_objective_is_no_near_miss() -> None:
    """float32 reads twice the cache, and here not even one sequence of it is in time."""
    made = plan(prompt_tokens=100_000, workload={"itl_s": 0.035}, engine=FUTURE_CUDA)
    assert 1 <= made.service.concurrency < 1.3
    assert "KV cache float32" not in {each.change for each in made.near_misses}


def test_an_objective_out_of_reach_names_one_that_works() -> None:
    with pytest.raises(
        ObjectiveOutOfReach, match=r"inter-token latency of 1\.0 ms cannot be kept on h100-80g"
    ) as refusal:
        plan(workload={"itl_s": 0.001})
    works_ms = float(str(refusal.value).split(": write ")[1].split()[0])
    assert plan(workload={"itl_s": works_ms / 1000}).service.concurrency >= 1
    with pytest.raises(ObjectiveOutOfReach):
        plan(workload={"itl_s": (works_ms - 1) / 1000})


def test_the_memory_that_a_refusal_names_suffices() -> None:
    with pytest.raises(DoesNotFit, match="does not fit l4-24g") as refusal:
        plan(read_model("Qwen3-32B", *checkpoints.qwen3_32b()), "l4-24g")
    fix = next(fix for fix in refusal.value.fixes if "or more" in fix)
    memory = float(fix.split(" with ")[1].split()[0]) * GIB
    assert plan(read_model("m", *checkpoints.qwen3_32b()), "l4-24g", memory_bytes=round(memory))


def test_lengths_of_a_histogram_decide_the_longest_sequence() -> None:
    asked = request()
    lengths = Lengths.of_histogram({100: 900, 1000: 99, 30_000: 1})
    workload = replace(asked.workload, prompt_tokens=lengths, output_tokens=Lengths.of_histogram({200: 1}))
    assert lengths.mean == pytest.approx(219)
    assert lengths.longest == 1000
    assert make_plan(replace(asked, workload=workload)).max_model_len == 1200


def test_a_histogram_counts_the_steps_and_contexts_that_its_mean_hides() -> None:
    lengths = Lengths.of_histogram({100: 3, 4100: 1})
    hidden, told = (replace(request().workload, prompt_tokens=each) for each in (Lengths(1100), lengths))
    assert (hidden.prefill_steps(2048), told.prefill_steps(2048)) == (1, (3 * 1 + 1 * 3) / 4)
    assert told.mean_context == hidden.mean_context
    # Of sequences that decode at one moment, 41 of 44 are long: 100 and 3 * 100 against 4100 tokens.
    outputs = replace(hidden, output_tokens=lengths)
    assert outputs.mean_context == pytest.approx(1100 + (3 * 100 * 50 + 4100 * 2050) / (3 * 100 + 4100))
    made = [make_plan(replace(request(workload={"ttft_s": 0.2}), workload=each)) for each in (hidden, told)]
    assert (made[0].service.ttft_s or 0) < (made[1].service.ttft_s or 0)
    assert made[0].service.prefill_share == made[1].service.prefill_share


def test_replicas_and_cost_follow_from_the_service_rate() -> None:
    made = plan(workload={"rate_per_s": 100.0, "itl_s": 0.03})
    rate = made.service.requests_per_s or 0
    assert made.replicas == -(-100 // (rate * 0.85))
    per_hour = (made.service.output_tokens_per_s or 0) * 3600
    assert made.cost_per_million_output_tokens(2.5) == pytest.approx(2.5 / per_hour * 1e6)


def test_cached_prefixes_raise_the_rate() -> None:
    plain, shared = (plan(prompt_tokens=4000, workload={"shared_prefix": share}) for share in (0.0, 0.8))
    assert (shared.service.requests_per_s or 0) > 1.5 * (plain.service.requests_per_s or 0)


def test_unknown_speed_is_unknown_and_not_zero() -> None:
    made = plan(SMALL, None, memory_bytes=4 * GIB)
    assert (made.step, made.service.requests_per_s, made.replicas) == (None, None, None)
    assert made.service.concurrency == made.knobs.max_num_seqs == 128


def test_a_cpu_without_bfloat16_computes_in_float32() -> None:
    assert plan(SMALL, "cpu", memory_bytes=8 * GIB).knobs.kv_cache == "float32"
    assert plan(SMALL, "cpu", memory_bytes=8 * GIB, dtype="bfloat16").knobs.kv_cache == "bf16"


def test_every_knob_has_a_reason() -> None:
    made = plan(workload={"itl_s": 0.03}, block_size=32)
    assert all(choice.reason for choice in made.choices)
    assert {choice.knob: choice.value for choice in made.choices}["block-size"] == "32"
    assert next(choice for choice in made.choices if choice.knob == "block-size").reason.startswith("you set it")


def test_priors_give_the_step_times_that_they_were_chosen_for() -> None:
    """The autoscaler's prototype assumed these for a 70B model on four H100."""
    step = plan(read_model("m", *checkpoints.llama_3_3_70b()), count=4).step
    assert step is not None
    assert step.base_s == pytest.approx(18e-3, rel=0.05)
    assert step.prefill_token_s == pytest.approx(79e-6, rel=0.05)
    assert step.kv_token_s == pytest.approx(35e-9, rel=0.05)
    assert step.sequence_s == pytest.approx(20e-6, rel=0.05)


def test_experts_compute_in_part_and_are_stored_in_full() -> None:
    sparse = plan(read_model("m", *checkpoints.gpt_oss(layers=24, experts=32)))
    dense_s = 2 * 20.9e9 / (989e12 * 0.45)
    assert sparse.step is not None
    assert sparse.step.prefill_token_s < dense_s / 4
    assert sparse.unavailable == ("checkpoints quantized with mxfp4", "attention sinks")


def test_an_engine_without_flags_is_planned_with_its_own_defaults_and_says_so() -> None:
    asked = replace(request(memory_bytes=80 * 2**30), chooses_knobs=False)
    found = make_plan(asked)
    assert found.knobs.max_num_seqs == asked.engine.max_num_seqs
    assert found.knobs.max_num_batched_tokens == asked.engine.max_num_batched_tokens
    reasons = {choice.knob: choice.reason for choice in found.choices}
    assert reasons["max-num-seqs"].startswith("the engine's default")
    assert reasons["max-num-batched-tokens"].startswith("the engine's default")
    pinned = make_plan(replace(asked, pinned=PinnedKnobs(max_num_seqs=4)))
    assert (pinned.knobs.max_num_seqs, {each.knob: each.reason for each in pinned.choices}["max-num-seqs"]) == (
        4,
        "you set it",
    )
    assert pinned.limit.endswith("; you set it")


def test_a_step_too_narrow_for_the_default_places_is_refused() -> None:
    asked = replace(request(max_num_batched_tokens=64), chooses_knobs=False)
    with pytest.raises(CannotPlan) as refused:
        make_plan(asked)
    assert str(refused.value) == (
        "max_num_batched_tokens 64 is less than the engine's default max_num_seqs 128, so it would not start: use 128 "
        "or more, or a max_num_seqs of 64 or less"
    )
    assert make_plan(replace(asked, pinned=replace(asked.pinned, max_num_seqs=64))).knobs.max_num_seqs == 64
    assert make_plan(replace(asked, chooses_knobs=True)).knobs.max_num_seqs <= 64
