"""Rounded formats: what passed its gate may be chosen, what failed may not, and the plan says on what it rests."""

from dataclasses import replace
from typing import Any

import pytest

from pagefleet.capacity import Allowed, CannotPlan, CapacityPlan, DoesNotFit, QualityGate, QualityResult, make_plan
from pagefleet.capacity.accelerators import GIB
from tests.autoscaler.builders import FUTURE_CUDA, request

PASSED = ("int8", "auto", 0.016)
FAILED = ("int4", "auto", 0.45)


def gated(*results: tuple[str, str, float], allowed: Allowed | None = None, **options: Any) -> CapacityPlan:
    options = {"memory_bytes": 22 * GIB, "engine": FUTURE_CUDA, **options}
    found = tuple(QualityResult(weights=weights, kv_cache=kv_cache, kl_nats=kl) for weights, kv_cache, kl in results)
    asked = replace(request(**options), gate=QualityGate(results=found))
    return make_plan(replace(asked, allowed=allowed or asked.allowed))


def evidence(made: CapacityPlan) -> dict[str, str]:
    return {choice.knob: choice.evidence for choice in made.choices}


def formats(made: CapacityPlan) -> tuple[str, str]:
    return made.knobs.weights, made.knobs.kv_cache


def test_a_choice_that_passed_needs_no_allow_list() -> None:
    plain, made = gated(), gated(PASSED, FAILED)
    assert (formats(plain), formats(made)) == (("none", "bf16"), ("int8", "bf16"))
    assert evidence(made)["quantization"] == "predicted, quality gate: passed, KL 0.016 of at most 0.03 nats"
    assert evidence(made)["kv-cache-dtype"] == "", "a plain cache changes no answer"
    assert [each.sentence for each in made.formats] == [
        "weights none, KV cache bf16: plain, needs no quality gate",
        "weights int8, KV cache bf16: quality gate: passed, KL 0.016 of at most 0.03 nats",
    ]
    obstacles = {each.change: each.obstacle for each in made.near_misses}
    assert obstacles["weights int4"] == "quality gate: failed, KL 0.45 above 0.03 nats: allow it first"
    assert obstacles["KV cache k4v3"] == "loses some accuracy: needs quality gate, or allow it"


def test_what_the_user_allows_without_a_result_is_chosen_and_says_so() -> None:
    made = gated(weights=("none", "int8"))
    assert formats(made) == ("int8", "bf16")
    assert evidence(made)["quantization"] == "predicted, quality gate: not run"
    assert made.formats[1].sentence == "weights int8, KV cache bf16: needs quality gate"


def test_what_failed_is_chosen_only_where_nothing_else_is_left() -> None:
    made = gated(FAILED, weights=("none", "int4"))
    assert formats(made) == ("none", "bf16")
    assert {each.change: each.obstacle for each in made.rejected} == {
        "weights int4": "quality gate: failed, KL 0.45 above 0.03 nats"
    }
    alone = gated(FAILED, weights=("int4",))
    assert evidence(alone)["quantization"] == "quality gate: failed, KL 0.45 above 0.03 nats"
    with pytest.raises(DoesNotFit, match=r"use weights int4 \(quality gate: failed, KL 0.45 above 0.03 nats\)"):
        gated(FAILED, weights=("none", "int4"), memory_bytes=12 * GIB)


def test_formats_that_the_user_sets_himself_stay() -> None:
    fixed = Allowed(weights_are_fixed=True)
    assert formats(gated(PASSED, ("none", "k4v3", 0.003), allowed=fixed)) == ("none", "k4v3")
    fixed = Allowed(weights_are_fixed=True, kv_cache_is_fixed=True)
    assert formats(gated(PASSED, ("none", "k4v3", 0.003), allowed=fixed)) == ("none", "bf16")


def test_a_pair_needs_a_result_of_its_own_and_the_worst_counts() -> None:
    both = gated(PASSED, ("none", "k4v3", 0.003))
    assert ("int8", "k4v3") not in {(each.weights, each.kv_cache) for each in both.formats}
    assert formats(gated(PASSED, ("int8", "auto", 0.031))) == ("none", "bf16")
    assert formats(gated(("int8", "bf16", 0.016))) == ("int8", "bf16")


def test_a_block_size_keeps_caches_away_that_it_is_illegal_for() -> None:
    assert formats(gated(("none", "k4v3", 0.003), block_size=16)) == ("none", "bf16")


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (("int8", "auto", -1.0), "a KL result of -1 nats is none: write a number of 0 or more"),
        (("int8", "auto", float("nan")), "a KL result of nan nats is none"),
        (("int9", "auto", 0.1), "weights int9 is unknown"),
        (("int8", "int9", 0.1), "KV cache int9 is unknown"),
    ],
)
def test_wrong_results(result: tuple[str, str, float], sentence: str) -> None:
    with pytest.raises(CannotPlan, match=sentence):
        gated(result)
