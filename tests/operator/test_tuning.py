"""Knobs that the user left out: recommended, or chosen once and kept."""

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet.api.v1alpha1 import InferenceService, TuningStatus
from pagefleet.operator.plan.observed import Accelerators, ModelKnowledge, Observed
from pagefleet.operator.plan.planner import Plan
from pagefleet.operator.plan.tuned_knobs import NO_KNOBS, TunedKnobs, with_knobs
from tests.operator.builders import NOW, SETTINGS, applied, find, make_plan, ready_pod, revision_of, service
from tests.operator.test_fit import EIGHT_BILLION, GIB, PENDING, UNREACHABLE

H100 = Accelerators(8, round(79.18 * GIB), "NVIDIA-H100-80GB-HBM3")
L4 = Accelerators(8, round(22.03 * GIB), "NVIDIA-L4")
SEEN = Observed(model=EIGHT_BILLION, accelerators=H100)


def tuned(mode: str, objective: str = "throughput", **spec: Any) -> InferenceService:
    return service(accelerator={"resource": "nvidia.com/gpu"}, tuning={"mode": mode, "objective": objective}, **spec)


def arguments(result: Plan) -> list[str]:
    template = find(result, "ReplicaSet").body["spec"]["template"]
    return list(template["spec"]["containers"][0]["args"])


def value_of(flag: str, result: Plan) -> str | None:
    given = arguments(result)
    return given[given.index(flag) + 1] if flag in given else None


def told(result: Plan) -> TuningStatus:
    assert result.status.tuning is not None
    return result.status.tuning


def recommended(result: Plan) -> dict[str, str]:
    return told(result).recommended or {}


def running(one: InferenceService, result: Plan, observed: Observed = SEEN, *, age_days: float = 0) -> Observed:
    """Return what is observed once a plan runs, its revision so many days old."""
    seen = applied(result, ready_pod(revision_of(result)), model=observed.model, accelerators=observed.accelerators)
    created = NOW - timedelta(days=age_days)
    return replace(seen, revisions=tuple(replace(each, created=created) for each in seen.revisions))


def test_recommend_says_what_it_would_do_and_changes_nothing() -> None:
    result = make_plan(tuned("Recommend"), SEEN)
    off = make_plan(tuned("Off"), SEEN)
    assert arguments(result) == arguments(off)
    assert off.status.tuning is None
    assert off.status.plan == result.status.plan, "a plan of the fit is made in any mode"
    assert not told(result).applied
    assert set(recommended(result)) >= {"engine.maxNumSeqs", "engine.maxNumBatchedTokens"}
    assert int(recommended(result)["engine.maxNumSeqs"]) > 128
    assert "requests/s are expected of a replica, now" in (told(result).message or "")


def test_what_is_best_already_has_no_recommendation_at_all() -> None:
    """Server-side apply turns an empty map in place of a full one into null, which the schema refuses."""
    best = {"maxNumSeqs": 1024, "maxNumBatchedTokens": 2048}
    status = make_plan(tuned("Recommend", engine=best), SEEN).status.to_manifest()
    assert "recommended" not in status["tuning"]


def test_auto_fills_what_the_user_left_out_and_nothing_else() -> None:
    result = make_plan(tuned("Auto", engine={"maxNumBatchedTokens": 1024}), SEEN)
    assert value_of("--max-num-batched-tokens", result) == "1024"
    places = value_of("--max-num-seqs", result)
    assert places == recommended(result)["engine.maxNumSeqs"]
    assert told(result).applied
    assert "engine.maxNumBatchedTokens" not in recommended(result)
    assert value_of("--max-model-len", result) is None, "the engine fits it to what it measures"
    plan = result.status.plan
    assert plan is not None
    assert str(plan.max_num_seqs) == places
    why = {sentence.split()[0]: sentence for sentence in plan.why}
    assert "you set it" in why["max-num-batched-tokens"]
    assert "you set it" not in why["max-num-seqs"] + why["block-size"]
    assert "KV memory allows" in why["max-num-seqs"]


def test_auto_makes_fit_what_fits_with_fewer_places() -> None:
    little = Observed(model=EIGHT_BILLION, accelerators=Accelerators(8, 18_200 * 2**20))
    assert make_plan(tuned("Recommend"), little).status.reason == "DoesNotFit"
    result = make_plan(tuned("Auto"), little)
    assert value_of("--max-num-seqs", result) is not None
    assert told(result).message == "with the present settings the model does not fit"


def test_objectives_and_accelerators_get_configurations_of_their_own() -> None:
    results = [
        make_plan(tuned("Auto"), SEEN),
        make_plan(tuned("Auto", "latency"), SEEN),
        make_plan(tuned("Auto"), Observed(model=EIGHT_BILLION, accelerators=L4)),
    ]
    flags = [tuple(value_of(flag, each) for flag in ("--max-num-seqs", "--max-num-batched-tokens")) for each in results]
    assert len(set(flags)) == 3
    fast = told(results[1]).message or ""
    assert fast.startswith("the longest step is expected to take ")


def test_the_objective_memory_takes_what_the_load_needs() -> None:
    engine = {"maxModelLen": 8192, "maxNumSeqs": 16}
    result = make_plan(tuned("Auto", "memory", engine=engine), SEEN)
    share = value_of("--gpu-memory-utilization", result)
    assert share is not None
    assert 0.2 < float(share) < 0.35
    assert recommended(result)["engine.gpuMemoryUtilization"] == share
    assert re.fullmatch(
        r"[\d.]+ GiB are expected to serve the load, now [\d.]+ GiB are taken \(predicted .*\)",
        told(result).message or "",
    )
    plan = result.status.plan
    assert plan is not None
    assert plan.gpu_memory_utilization == float(share)
    assert "the least that holds the load" in " ".join(plan.why)
    settled = make_plan(tuned("Auto", "memory", engine=engine), running(tuned("Auto", "memory"), result))
    assert revision_of(settled) == revision_of(result)
    pinned = make_plan(tuned("Auto", "memory", engine={**engine, "gpuMemoryUtilization": 0.5}), SEEN)
    assert value_of("--gpu-memory-utilization", pinned) == "0.5"
    for objective in ("throughput", "latency"):
        assert value_of("--gpu-memory-utilization", make_plan(tuned("Auto", objective), SEEN)) is None


def test_auto_chooses_what_passed_its_quality_gate_and_says_so() -> None:
    def of(mode: str, kl_nats: float | None, **tuning: Any) -> Plan:
        results = [] if kl_nats is None else [{"kvCache": "k4v3", "klNats": kl_nats}]
        quality = {"model": "hf://organisation/model", "results": results}
        one = service(
            model={"uri": quality["model"]},
            accelerator={"resource": "nvidia.com/gpu"},
            tuning={"mode": mode, "quality": quality, **tuning},
        )
        return make_plan(one, Observed(model=EIGHT_BILLION, accelerators=L4))

    passed, failed, none = (of("Auto", kl_nats) for kl_nats in (0.003, 0.3, None))
    assert [value_of("--kv-cache-dtype", each) for each in (passed, failed, none)] == ["k4v3", None, None]
    assert recommended(passed)["engine.kvCache.dtype"] == "k4v3"
    plan = passed.status.plan
    assert plan is not None
    gate = "quality gate: passed, KL 0.003 of at most 0.03 nats"
    assert plan.formats[1] == f"weights none, KV cache k4v3: {gate}"
    assert f"(evidence: predicted, {gate})" in next(each for each in plan.why if each.startswith("kv-cache-dtype k4v3"))

    allowed = of("Auto", None, allow={"kvCache": ["auto", "k4v3"]})
    assert value_of("--kv-cache-dtype", allowed) == "k4v3", "who allows it gets it"
    assert allowed.status.plan is not None
    assert "weights none, KV cache k4v3: needs quality gate" in allowed.status.plan.formats
    assert "quality gate: not run" in " ".join(allowed.status.plan.why)

    advised = of("Recommend", 0.003)
    assert value_of("--kv-cache-dtype", advised) is None
    assert recommended(advised)["engine.kvCache.dtype"] == "k4v3"
    assert advised.status.plan is not None
    assert advised.status.plan.formats == plan.formats


def test_a_choice_is_kept_when_the_operator_changes_and_when_nothing_is_known() -> None:
    one = tuned("Auto")
    first = make_plan(one, SEEN)
    running_one = one.model_copy(update={"status": first.status})
    for observed, operator in (
        (running(one, first, age_days=30), replace(SETTINGS, operator_version="9")),
        (running(one, first, Observed(model=PENDING, accelerators=L4), age_days=30), SETTINGS),
        (running(one, first, Observed(model=UNREACHABLE, accelerators=H100)), SETTINGS),
        (running(one, first, Observed(model=EIGHT_BILLION, accelerators=L4), age_days=0.9), SETTINGS),
    ):
        result = make_plan(running_one, observed, operator)
        assert revision_of(result) == revision_of(first)
        assert [each.body["spec"]["template"] for each in result.objects if each.id[0] == "ReplicaSet"] == [
            find(first, "ReplicaSet").body["spec"]["template"]
        ]


@settings(max_examples=60, deadline=None)
@given(
    age_days=st.floats(0, 10),
    is_same_version=st.booleans(),
    places=st.sampled_from([1, 8, 1024]),
)
def test_another_choice_needs_a_gain_an_age_and_the_same_planner(
    age_days: float, is_same_version: bool, places: int
) -> None:
    """Replicas run with few places: on an H100 a gain of far more than 10 % is expected of more."""
    one = tuned("Auto")
    first = make_plan(one, SEEN)
    seen = running(one, first, age_days=age_days)
    knobs = replace(seen.revisions[0].knobs, max_num_seqs=places)
    seen = replace(seen, revisions=(replace(seen.revisions[0], knobs=knobs),))
    operator = SETTINGS if is_same_version else replace(SETTINGS, operator_version="9")
    result = make_plan(one.model_copy(update={"status": first.status}), seen, operator)
    is_new = revision_of(result) != revision_of(first)
    assert is_new == (age_days >= 1 and is_same_version and places < 1024)
    if is_new:
        again = running(one, result)
        settled = make_plan(one.model_copy(update={"status": result.status}), again)
        assert revision_of(settled) == revision_of(result), "it must not go back and forth"


def test_a_changed_spec_or_mode_is_planned_anew() -> None:
    one = tuned("Recommend")
    first = make_plan(one, SEEN)
    changed = tuned("Auto", generation=2).model_copy(update={"status": first.status})
    result = make_plan(changed, running(one, first))
    assert revision_of(result) != revision_of(first)
    stored = [each for each in result.objects if each.id[0] == "ControllerRevision"]
    assert [each.body["data"].get("knobs", {}).get("max_num_seqs") for each in stored].count(None) == 1


def test_without_facts_nothing_is_recommended() -> None:
    for knowledge in (PENDING, UNREACHABLE, ModelKnowledge(obstacle="x")):
        assert make_plan(tuned("Recommend"), Observed(model=knowledge, accelerators=H100)).status.tuning is None


@pytest.mark.parametrize("knobs", [NO_KNOBS, TunedKnobs(16, 8, 512, "int8", "bf16", 0.4)])
def test_knobs_survive_their_store(knobs: TunedKnobs) -> None:
    assert TunedKnobs.from_json({**knobs.to_json(), "later": 1}) == knobs
    engine = with_knobs(service(), knobs).spec.engine
    assert engine.gpu_memory_utilization == knobs.gpu_memory_utilization
    assert (engine.max_num_seqs, engine.weights.quantization, engine.kv_cache.dtype) == (
        knobs.max_num_seqs,
        knobs.weights,
        knobs.kv_cache,
    )
    told = service(engine={"maxNumSeqs": 3, "kvCache": {"dtype": "auto"}})
    kept = with_knobs(told, knobs).spec.engine
    assert (kept.max_num_seqs, kept.kv_cache.dtype) == (3, "auto")
