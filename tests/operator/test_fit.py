"""Whether a model fits, judged before its pods exist: refusals, what goes on without a plan, what stays."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet.api.capacity import CapacityReport, EnginePhase, MemoryParts, MemoryReport
from pagefleet.api.conditions import find_condition
from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.capacity import read_model
from pagefleet.operator.plan.observed import Accelerators, ModelKnowledge, Observed, Progress
from pagefleet.operator.plan.planner import Plan
from tests.operator.builders import NOW, applied, make_plan, ready_pod, revision_of, service
from tests.support import checkpoints

GIB = 2**30
EIGHT_BILLION = ModelKnowledge(read_model("organisation/model", *checkpoints.llama_3_1_8b()))
SMALL = ModelKnowledge(
    read_model(
        "organisation/small",
        *checkpoints.dense(
            layers=2, hidden=64, intermediate=128, heads=4, kv_heads=2, vocabulary=256, head_dim=16, context=512
        ),
    )
)
PENDING = ModelKnowledge(pending_s=3.0)
UNREACHABLE = ModelKnowledge(obstacle="https://huggingface.co can't be reached", retry_s=300.0)
GPU = {"resource": "nvidia.com/gpu"}


def gpu(memory: str, **spec: Any) -> InferenceService:
    return service(accelerator={**GPU, "memory": memory}, **spec)


def carried(one: InferenceService, result: Plan) -> InferenceService:
    return one.model_copy(update={"status": result.status})


def told(result: Plan, kind: str = "PlanAccepted") -> tuple[str, str, str]:
    condition = find_condition(result.status.conditions, kind)
    assert condition is not None
    return str(condition.status), condition.reason, condition.message


def test_a_model_that_fits_gets_its_pods_and_an_explained_plan() -> None:
    result = make_plan(gpu("80Gi"), Observed(model=EIGHT_BILLION))
    plan = result.status.plan
    assert plan is not None
    assert plan.predicted is not None
    assert any(one.resource.kind == "ReplicaSet" for one in result.objects)
    assert told(result)[:2] == ("True", "Planned")
    assert "weights 15.0 GiB" in told(result)[2]
    assert (plan.block_size, plan.max_num_seqs, plan.max_num_batched_tokens) == (16, 128, 2048)
    assert plan.predicted.weights_bytes == 16_060_522_496
    assert plan.predicted.bytes_per_token == 131_072
    assert plan.limit is not None
    assert any(sentence.startswith("max-model-len 131072: the model's context") for sentence in plan.why)


def test_an_objective_out_of_reach_is_told_and_keeps_nothing_from_starting() -> None:
    nodes = Accelerators(8, 80 * GIB, "NVIDIA-H100-80GB-HBM3")
    slow = service(accelerator=GPU, autoscaling={"maxReplicas": 2, "slo": {"itl": "2ms"}})
    result = make_plan(slow, Observed(model=EIGHT_BILLION, accelerators=nodes))
    assert told(result)[:2] == ("True", "Planned")
    assert "the inter-token latency of 2.0 ms cannot be kept on h100-80g" in told(result)[2]
    assert result.status.plan is not None
    assert result.status.plan.predicted is not None


def test_a_model_that_does_not_fit_gets_no_pod_until_it_is_fixed() -> None:
    one = gpu("16Gi")
    refused = make_plan(one, Observed(model=EIGHT_BILLION))
    assert refused.objects == ()
    assert (refused.status.phase, refused.status.reason) == ("Failed", "DoesNotFit")
    assert told(refused, "Ready")[:2] == ("False", "DoesNotFit")
    message = told(refused)[2]
    assert "organisation/model does not fit" in message
    assert "0.9 of 16.0 GiB is 14.4 GiB" in message
    assert "Fix: " in message
    fixed = gpu("24Gi", generation=2).model_copy(update={"status": refused.status})
    result = make_plan(fixed, Observed(model=EIGHT_BILLION))
    assert any(each.resource.kind == "ReplicaSet" for each in result.objects)
    assert told(result)[1] == "Planned"


def test_what_fits_with_fewer_places_says_with_how_many() -> None:
    """128 places and the vocabulary of 128,256 take 0.4 GiB more than one."""
    refused = make_plan(gpu("18200Mi"), Observed(model=EIGHT_BILLION))
    assert told(refused)[1] == "DoesNotFit"
    fix = told(refused)[2].split("Fix: ")[1]
    assert fix.startswith("write under spec.engine maxNumSeqs: ")
    places = int(fix.split("maxNumSeqs: ")[1].split(",")[0].split(";")[0])
    engine = {"maxNumSeqs": places}
    assert told(make_plan(gpu("18200Mi", engine=engine), Observed(model=EIGHT_BILLION)))[1] == "Planned"


def test_a_refused_change_leaves_what_runs_alone() -> None:
    one = gpu("80Gi")
    first = make_plan(one, Observed(model=EIGHT_BILLION))
    was = revision_of(first)
    seen = applied(first, ready_pod(was), model=EIGHT_BILLION)
    ready = make_plan(carried(one, first), seen)
    changed = gpu("12Gi", generation=2).model_copy(update={"status": ready.status})
    result = make_plan(changed, seen)
    assert result.scale is not None
    assert dict(result.scale.replicas) == {was: 1}
    assert (result.status.phase, result.status.reason, result.status.ready_replicas) == ("Degraded", "DoesNotFit", 1)
    assert told(result, "Available")[0] == "True"


def test_replicas_that_answer_are_worth_more_than_a_prediction() -> None:
    one = gpu("16Gi")
    first = make_plan(one)  # before anything is known of the model
    seen = applied(first, ready_pod(revision_of(first)), model=EIGHT_BILLION)
    result = make_plan(carried(one, first), seen)
    assert told(result)[:2] == ("True", "Measured")
    assert told(result, "Ready")[0] == "True"
    assert "does not fit" in told(result)[2]


def test_a_new_service_waits_for_the_hub_and_goes_on_without_it() -> None:
    one = gpu("80Gi")
    waiting = make_plan(one, Observed(model=PENDING))
    assert (waiting.objects, waiting.requeue_after_s) == ((), 3.0)
    assert (waiting.status.phase, waiting.status.reason) == ("Pending", "Planning")
    result = make_plan(carried(one, waiting), Observed(model=UNREACHABLE))
    assert any(each.resource.kind == "ReplicaSet" for each in result.objects)
    assert told(result)[:2] == ("True", "NotPlanned")
    assert "https://huggingface.co can't be reached" in told(result)[2]
    assert result.requeue_after_s == 300.0


@pytest.mark.parametrize("memory", ["80Gi", "16Gi"])
@pytest.mark.parametrize("unknown", [PENDING, UNREACHABLE], ids=["pending", "unreachable"])
def test_a_restarted_operator_changes_nothing_before_it_knows_again(memory: str, unknown: ModelKnowledge) -> None:
    one = gpu(memory)
    before = make_plan(one, Observed(model=EIGHT_BILLION))
    after = make_plan(carried(one, before), Observed(model=unknown))
    assert after.status == before.status
    assert [each.id for each in after.objects] == [each.id for each in before.objects]


def test_an_update_that_waits_for_the_hub_does_not_disturb_ready() -> None:
    one = gpu("80Gi")
    first = make_plan(one, Observed(model=EIGHT_BILLION))
    seen = applied(first, ready_pod(revision_of(first)), model=EIGHT_BILLION)
    status = make_plan(carried(one, first), seen).status
    other = gpu("80Gi", uri="hf://organisation/other", generation=2).model_copy(update={"status": status})
    result = make_plan(other, applied(first, ready_pod(revision_of(first)), model=PENDING))
    assert told(result, "Ready")[0] == "True"
    assert told(result)[1] == "Planning"
    assert result.scale is not None
    assert dict(result.scale.replicas) == {revision_of(first): 1}


@pytest.mark.parametrize(
    ("fields", "nodes", "memory_bytes"),
    [
        ({"accelerator": GPU}, Accelerators(8, 24 * GIB), 24 * GIB),
        ({"accelerator": {**GPU, "memory": "80Gi"}}, Accelerators(8, 24 * GIB), 80 * GIB),
        ({"accelerator": GPU}, Accelerators(8), None),
        ({"accelerator": {"memory": "4Gi"}}, None, 4 * GIB),
        ({}, None, None),
        ({"limit": "2Gi"}, None, 2 * GIB),
        ({"limit": "nonsense"}, None, None),
        ({"limit": "2Gi", "accelerator": GPU, "device": "cpu"}, Accelerators(8, 24 * GIB), 2 * GIB),
    ],
)
def test_memory_is_the_specs_the_nodes_or_the_containers(
    fields: dict[str, Any], nodes: Accelerators | None, memory_bytes: int | None
) -> None:
    engine: dict[str, Any] = {"name": "engine"}
    if limit := fields.pop("limit", None):
        engine["resources"] = {"limits": {"memory": limit}}
    if device := fields.pop("device", None):
        engine["env"] = [{"name": "PAGEFLEET_DEVICE", "value": device}]
    one = service(**fields, template={"spec": {"containers": [engine]}})
    result = make_plan(one, Observed(model=SMALL, accelerators=nodes))
    plan = result.status.plan
    if memory_bytes is None:
        assert told(result)[1] == "NotPlanned"
        assert "spec.accelerator.memory, such as 80Gi" in told(result)[2]
    else:
        assert told(result)[1] == "Planned", "a mean request is cut to the model's context of 512 tokens"
        assert plan is not None
        assert plan.predicted is not None
        assert plan.predicted.memory_bytes == memory_bytes


def test_a_template_without_the_engine_is_no_crash() -> None:
    patch = {"spec": {"containers": [{"$patch": "replace"}]}}
    assert told(make_plan(service(template=patch), Observed(model=SMALL)))[1] == "NotPlanned"


def test_on_a_cpu_only_what_fits_in_neither_number_format_is_refused() -> None:
    float32 = service(accelerator={"memory": "64Gi"})
    bfloat16 = service(accelerator={"memory": "30Gi"})
    neither = service(accelerator={"memory": "15Gi"})
    seen = Observed(model=EIGHT_BILLION)
    plans = [make_plan(one, seen) for one in (float32, bfloat16, neither)]
    assert [told(each)[1] for each in plans] == ["Planned", "Planned", "DoesNotFit"]
    dtypes = [next(word for word in each.status.plan.why if word.startswith("dtype")) for each in plans[:2]]  # type: ignore[union-attr]
    assert [text.split()[1] for text in dtypes] == ["float32:", "bfloat16:"]


@pytest.mark.parametrize(
    ("more_gib", "status", "reason"), [(0.5, "True", "WithinFivePercent"), (4.5, "False", "PlanDrift")]
)
def test_a_measurement_beside_the_plan_tells_the_error(more_gib: float, status: str, reason: str) -> None:
    """Also where the cache shrinks by just as much, so that the sum stays what was planned."""
    one = gpu("80Gi")
    first = make_plan(one, Observed(model=EIGHT_BILLION))
    planned = first.status.plan
    assert planned is not None
    assert planned.predicted is not None
    assert find_condition(first.status.conditions, "PlanMatches") is None
    more_bytes = round(more_gib * GIB)
    cache_bytes = (planned.predicted.kv_cache_bytes or 0) - more_bytes
    blocks = cache_bytes // (16 * 131_072)
    parts = MemoryParts(
        weights_bytes=16_060_522_496,
        activation_bytes=planned.predicted.activation_bytes or 0,
        runtime_bytes=(planned.predicted.overhead_bytes or 0) + more_bytes,
        kv_cache_bytes=cache_bytes,
    )
    report = CapacityReport(
        phase=EnginePhase.READY,
        blocks_total=blocks,
        block_size=16,
        max_model_len=131_072,
        max_num_seqs=128,
        weights_bytes=16_060_522_496,
        kv_cache_bytes=blocks * 16 * 131_072,
        memory_bytes=80 * GIB,
        memory=MemoryReport(measured=parts),
    )
    replica = ready_pod(revision_of(first))
    seen = applied(first, replica, progress={replica.uid: Progress(report)}, model=EIGHT_BILLION)
    result = make_plan(carried(one, first), seen)
    assert told(result, "PlanMatches")[:2] == (status, reason)
    assert told(result, "Ready")[0] == "True"
    measured = result.status.plan.measured if result.status.plan else None
    assert measured is not None
    assert (measured.weights_bytes, measured.bytes_per_token) == (16_060_522_496, 131_072)
    restarted = make_plan(carried(one, result), applied(first, replica, model=PENDING))
    assert restarted.status == result.status


@settings(max_examples=60, deadline=None)
@given(
    memory_mib=st.integers(64, 400 * 1024),
    max_num_seqs=st.none() | st.integers(1, 512),
    max_model_len=st.none() | st.integers(1, 131_072),
    utilization=st.none() | st.floats(0.05, 1.0),
)
def test_every_verdict_is_one_of_three_and_a_plan_stays_within_memory(
    memory_mib: int, max_num_seqs: int | None, max_model_len: int | None, utilization: float | None
) -> None:
    engine = {"maxNumSeqs": max_num_seqs, "maxModelLen": max_model_len, "gpuMemoryUtilization": utilization}
    if max_model_len is not None and max_model_len < 16:
        engine["blockSize"] = 1
    one = gpu(f"{memory_mib}Mi", engine={key: value for key, value in engine.items() if value is not None})
    result = make_plan(one, Observed(model=EIGHT_BILLION))
    reason = told(result)[1]
    assert reason in ("Planned", "DoesNotFit", "NotPlanned")
    assert bool(result.objects) == (reason != "DoesNotFit")
    if reason == "Planned":
        predicted = result.status.plan.predicted if result.status.plan else None
        assert predicted is not None
        parts = (
            predicted.weights_bytes,
            predicted.activation_bytes,
            predicted.overhead_bytes,
            predicted.kv_cache_bytes,
        )
        assert sum(part or 0 for part in parts) <= (predicted.memory_bytes or 0) * (utilization or 0.9)
    assert result == make_plan(one, Observed(model=EIGHT_BILLION))
    assert result.status.conditions[0].last_transition_time == NOW
