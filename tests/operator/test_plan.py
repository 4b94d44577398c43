"""`pagefleet.operator.plan.planner`: what a service becomes, step by step, and what its status says on the way."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pagefleet.api.capacity import CapacityReport, EnginePhase
from pagefleet.api.conditions import Condition, find_condition
from pagefleet.api.v1alpha1 import InferenceService, InferenceServiceStatus
from pagefleet.operator.plan.observed import (
    Accelerators,
    ApplyFailure,
    DrainReport,
    Ended,
    Observed,
    PodRecord,
    Progress,
)
from pagefleet.operator.plan.planner import Plan
from tests.operator.builders import NOW, SETTINGS, applied, find, make_plan, pod, ready_pod, revision_of, service

GPU: dict[str, Any] = {"accelerator": {"resource": "nvidia.com/gpu"}}
NO_GPU = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."

QUANTIZED = {"weights": {"quantization": "sparse24"}}
"""What this engine cannot do."""


def condition(status: InferenceServiceStatus, kind: str) -> Condition:
    found = find_condition(status.conditions, kind)
    assert found is not None
    return found


def with_status(one: InferenceService, result: Plan) -> InferenceService:
    return one.model_copy(update={"status": result.status})


def settled(one: InferenceService, *pods_of: int) -> tuple[InferenceService, Plan, Observed]:
    """Return a service whose replicas all answer, its plan and what is observed then."""
    first = make_plan(one)
    revision = revision_of(first)
    seen = applied(first, *(ready_pod(revision, number) for number in range(1, one.spec.replicas + 1)))
    done = make_plan(with_status(one, first), seen)
    return with_status(one, done), done, seen


def test_a_new_service_gets_all_its_objects_in_order_and_says_it_starts() -> None:
    result = make_plan(service(replicas=2))
    kinds = [one.resource.kind for one in result.objects]
    assert kinds == [
        "ServiceAccount",
        "ControllerRevision",
        "ReplicaSet",
        "Service",
        "PodDisruptionBudget",
        "NetworkPolicy",
    ]
    assert find(result, "ReplicaSet").body["spec"]["replicas"] == 2
    status = result.status
    assert (status.phase, status.reason, status.replicas_text) == ("Pending", "Starting", "0/2")
    assert status.url == "http://chat.team.svc:8000/v1"
    assert status.selector == (
        "app.kubernetes.io/component=engine,app.kubernetes.io/name=pagefleet,serving.pagefleet.io/service=chat"
    )


def test_a_service_whose_replicas_answer_is_ready_and_at_rest() -> None:
    one, result, seen = settled(service(replicas=2))
    status = result.status
    assert (status.phase, status.reason, status.replicas_text) == ("Ready", "ReplicasAnswer", "2/2")
    assert status.revisions.current == status.revisions.updated is not None
    assert [str(condition(status, kind).status) for kind in ("Ready", "Progressing", "PlanAccepted", "UpToDate")] == [
        "True"
    ] * 4
    assert all(one.observed_generation == 1 for one in status.conditions)
    again = make_plan(one, seen)
    assert again.status == status
    assert [intent.hash for intent in again.objects] == [intent.hash for intent in result.objects]
    assert (again.removals, again.requeue_after_s) == ((), None)


def test_a_changed_spec_surges_and_the_old_revision_goes_with_its_objects() -> None:
    old, first, _ = settled(service())
    was = revision_of(first)
    new = service(engine={"maxModelLen": 2048}, generation=2).model_copy(update={"status": old.status})
    seen = applied(first, ready_pod(was))
    surging = make_plan(new, seen)
    now = revision_of(surging)
    assert now != was
    assert surging.scale is not None
    assert surging.scale.replicas == {was: 1, now: 1}
    assert (surging.status.phase, surging.status.revisions.current) == ("Updating", was)
    assert str(condition(surging.status, "Ready").status) == "True"

    both = make_plan(new, applied(surging, ready_pod(was), ready_pod(now)))
    assert both.scale is not None
    assert both.scale.replicas == {was: 0, now: 1}
    assert both.drain.replicas == {was: 1, now: 1}, "drained first"
    empty = replace(ready_pod(was), drain_began=NOW, traffic="off", is_ready=False)
    drained = applied(both, empty, ready_pod(now), drains={empty.uid: DrainReport(is_draining=True, in_flight=0)})
    gone = make_plan(with_status(new, both), drained)
    assert gone.drain.replicas == {was: 0, now: 1}
    last = make_plan(with_status(new, gone), applied(gone, ready_pod(now)))
    assert [(one.resource.kind, one.name) for one in last.removals] == [
        ("ReplicaSet", f"chat-{was}"),
        ("ControllerRevision", f"chat-{was}"),
    ]
    assert last.status.revisions.current == now
    assert last.status.phase == "Ready"


def test_scaling_scaling_policy_and_rollout_make_no_new_revision() -> None:
    base = revision_of(make_plan(service()))
    other = service(
        replicas=5,
        autoscaling={"maxReplicas": 9},
        rollout={"strategy": "Replace"},
        tuning={"mode": "Off"},
        engine={"kvCache": {}},
    )
    assert revision_of(make_plan(other)) == base
    assert revision_of(make_plan(service(engine={"blockSize": 8}))) != base


def test_a_new_operator_keeps_the_pods_and_reports_drift_until_the_user_adopts() -> None:
    one, first, seen = settled(service())
    newer = replace(SETTINGS, operator_version="0.2.0", engine_image="registry.example/engine:2")
    upgraded = make_plan(one, seen, newer)
    assert find(upgraded, "ReplicaSet").hash == find(first, "ReplicaSet").hash
    drift = condition(upgraded.status, "UpToDate")
    assert (str(drift.status), drift.reason) == ("False", "TemplateDrift")
    assert "serving.pagefleet.io/adopt-template=0.2.0" in drift.message
    assert upgraded.status.phase == "Ready"

    annotations = {"serving.pagefleet.io/adopt-template": "0.2.0"}
    adopting = make_plan(service(annotations=annotations), seen, newer)
    assert revision_of(adopting) != revision_of(first)
    images = {
        container["image"]
        for intent in adopting.objects
        if intent.resource.kind == "ReplicaSet"
        for container in intent.body["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"registry.example/engine:2", SETTINGS.engine_image}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"engine": QUANTIZED},
            "spec.engine.weights.quantization is sparse24, and .*; write none or int4, or int8 on a CPU.",
        ),
        ({"uri": "file:///models/chat"}, r"a pod may land on a node without that file; write pvc://claim/models/chat"),
        (
            {"template": {"spec": {"containers": [{"image": "x"}]}}},
            r"spec.template.spec.containers\[0\] has no name, .*write name",
        ),
    ],
)
def test_what_cannot_be_served_makes_no_pod_and_says_why(fields: dict[str, Any], sentence: str) -> None:
    result = make_plan(service(**fields))
    assert result.objects == ()
    accepted = condition(result.status, "PlanAccepted")
    assert str(accepted.status) == "False"
    assert result.status.phase == "Failed"
    ready = condition(result.status, "Ready")
    assert (str(ready.status), ready.reason, ready.message) == ("False", accepted.reason, accepted.message)
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(accepted.message)


def test_a_refused_change_keeps_what_serves() -> None:
    one, first, seen = settled(service(replicas=2))
    refused = service(replicas=3, engine=QUANTIZED, generation=2).model_copy(update={"status": one.status})
    result = make_plan(refused, seen)
    assert find(result, "ReplicaSet").body["spec"]["replicas"] == 3
    assert find(result, "ReplicaSet").name == find(first, "ReplicaSet").name
    assert (result.status.phase, result.status.reason) == ("Degraded", "Unsupported")
    assert result.status.revisions == one.status.revisions


def test_pods_that_the_cluster_refuses_are_a_refused_plan() -> None:
    failure = ApplyFailure(
        "ReplicaSet", "chat-1", is_invalid=True, message="spec.template.spec.foo: field not declared"
    )
    result = make_plan(service(), Observed(failures=(failure,)))
    assert (result.status.phase, result.status.reason) == ("Failed", "InvalidTemplate")
    assert "field not declared" in (result.status.message or "")


def crash(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"node": "node-1", "restarts": 3, "ended": Ended(code, reason, message)}


@pytest.mark.parametrize(
    ("fields", "state", "phase", "reason", "sentence"),
    [
        ({}, {}, "Pending", "Starting", "waits for a node"),
        ({}, {"node": "node-1"}, "Starting", "Starting", "starts on node-1"),
        (GPU, {"unschedulable": NO_GPU}, "Pending", "InsufficientAccelerators", "1 nvidia.com/gpu is missing: 1 of 1"),
        ({}, {"unschedulable": "0/1 nodes are available: 1 Too many pods."}, "Pending", "Unschedulable", "Too many"),
        (
            {},
            {"unschedulable": '0/1 nodes are available: persistentvolumeclaim "models" not found.'},
            "Pending",
            "VolumeClaimMissing",
            "volume claim models does not exist",
        ),
        (
            {},
            {"node": "n", "waiting_reason": "ImagePullBackOff", "waiting_message": 'Back-off pulling image "e:1"'},
            "Failed",
            "ImagePullFailed",
            'Back-off pulling image "e:1"',
        ),
        (
            {},
            {"waiting_reason": "CreateContainerConfigError", "waiting_message": 'secret "hf-token" not found'},
            "Failed",
            "ConfigurationMissing",
            'secret "hf-token" not found; create what is missing',
        ),
        (
            {},
            crash(1, message="one\nthe core died\n"),
            "Failed",
            "EngineCrashed",
            "exit code 1, 3 restarts.*the core died",
        ),
        ({}, crash(2, message="model x/y: the hub answers 404"), "Failed", "EngineCannotStart", "^model x/y: the hub"),
        ({}, crash(137, "OOMKilled"), "Failed", "OutOfMemory", "memory limit.*spec.template"),
        ({}, crash(1), "Failed", "EngineCrashed", "kubectl logs --previous"),
    ],
)
def test_each_cause_is_named(
    fields: dict[str, Any], state: dict[str, Any], phase: str, reason: str, sentence: str
) -> None:
    one = service(**fields)
    first = make_plan(one)
    result = make_plan(one, applied(first, pod(revision_of(first), **state)))
    assert (result.status.phase, result.status.reason) == (phase, reason)
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(result.status.message)
    assert result.requeue_after_s is not None


def test_a_shortage_says_how_many_accelerators_are_missing() -> None:
    one = service(replicas=5, **GPU)
    first = make_plan(one)
    revision = revision_of(first)
    waiting = [pod(revision, number, unschedulable=NO_GPU) for number in (3, 4, 5)]
    seen = applied(first, ready_pod(revision, 1), ready_pod(revision, 2), *waiting, accelerators=Accelerators(2))
    status = make_plan(one, seen).status
    message = status.message or ""
    assert status.reason == "InsufficientAccelerators"
    assert "3 nvidia.com/gpu are missing: 3 of 5 replicas wait for a node, each needs 1, of 2 in the cluster" in message
    assert NO_GPU.rstrip(".") in message
    assert (status.phase, status.replicas_text) == ("Degraded", "2/5")


def report(phase: EnginePhase, **fields: Any) -> CapacityReport:
    return CapacityReport.model_validate({"phase": phase, **fields})


@pytest.mark.parametrize(
    ("progress", "phase", "reason", "message"),
    [
        (
            Progress(report(EnginePhase.DOWNLOADING, progress=0.63, detail="Downloading 63 %")),
            "Downloading",
            "Downloading",
            "Downloading 63 %",
        ),
        (Progress(report(EnginePhase.LOADING, detail="Loading weights")), "Loading", "Loading", "Loading weights"),
        (
            Progress(report(EnginePhase.DOWNLOADING, detail="Downloading 63 %"), unchanged_s=1000),
            "Downloading",
            "StartupStalled",
            "Downloading 63 %, and no headway for 17 min; deleting the pod starts it again",
        ),
    ],
)
def test_a_start_is_told_from_the_engines_own_words(progress: Progress, phase: str, reason: str, message: str) -> None:
    one = service()
    first = make_plan(one)
    starting = pod(revision_of(first), node="node-1", is_running=True)
    result = make_plan(one, applied(first, starting, progress={starting.uid: progress}))
    assert (result.status.phase, result.status.reason, result.status.message) == (phase, reason, message)


def test_a_stuck_update_is_told_although_the_old_revision_answers() -> None:
    one, first, _ = settled(service())
    was = revision_of(first)
    new = service(engine={"maxModelLen": 2048}, generation=2).model_copy(update={"status": one.status})
    surging = make_plan(new, applied(first, ready_pod(was)))
    broken = pod(revision_of(surging), **crash(2, message="no such length"))
    status = make_plan(new, applied(surging, ready_pod(was), broken)).status
    assert (status.phase, status.reason) == ("Degraded", "EngineCannotStart")
    assert str(condition(status, "Ready").status) == "True"
    assert str(condition(status, "Progressing").status) == "False"
    assert "1 of 1 replicas answer" in (status.message or "")


def test_a_fixed_manifest_replaces_a_broken_revision_at_once() -> None:
    one = service()
    first = make_plan(one)
    was = revision_of(first)
    broken = applied(first, pod(was, **crash(2, message="no such model")))
    result = make_plan(service("hf://organisation/other", generation=2), broken)
    assert result.scale is not None
    assert result.scale.replicas == {was: 0, revision_of(result): 1}


def test_measurements_outlive_an_operator_but_not_their_revision() -> None:
    one = service()
    first = make_plan(one)
    replica = ready_pod(revision_of(first))
    measured = report(EnginePhase.READY, blocks_total=100, block_size=16, max_model_len=1600, max_num_seqs=8)
    plan = make_plan(one, applied(first, replica, progress={replica.uid: Progress(measured)})).status.plan
    assert plan is not None
    assert plan.measured is not None
    assert (plan.measured.blocks, plan.measured.kv_tokens, plan.max_model_len) == (100, 1600, 1600)

    told = make_plan(one, applied(first, replica, progress={replica.uid: Progress(measured)}))
    restarted = make_plan(with_status(one, told), applied(first, replica))
    assert restarted.status == told.status
    changed = service(engine={"blockSize": 8}, generation=2).model_copy(update={"status": told.status})
    after = make_plan(changed, applied(first, replica)).status.plan
    assert after is not None
    assert after.measured is None


@pytest.mark.parametrize(
    ("fields", "known", "expected"),
    [
        ({"accelerator": {"resource": "nvidia.com/gpu", "memory": "80Gi"}}, Accelerators(8, 1), 80 * 2**30),
        (GPU, Accelerators(8, 24 * 2**30), 24 * 2**30),
        (GPU, Accelerators(8), None),
        (GPU, None, None),
    ],
)
def test_accelerator_memory_comes_from_the_spec_else_from_the_nodes(
    fields: dict[str, Any], known: Accelerators | None, expected: int | None
) -> None:
    plan = make_plan(service(**fields), Observed(accelerators=known)).status.plan
    assert plan is not None
    assert (plan.predicted.memory_bytes if plan.predicted else None) == expected


def test_a_stopped_service_has_no_replica_and_says_how_to_start() -> None:
    one, _, seen = settled(service())
    stopped = service(replicas=0, generation=2).model_copy(update={"status": one.status})
    draining = make_plan(stopped, seen)
    assert find(draining, "ReplicaSet").body["spec"]["replicas"] == 1
    assert draining.status.phase == "Draining"
    (leaving,) = (
        replace(pod, drain_began=NOW - timedelta(seconds=12), traffic="off", is_ready=False) for pod in seen.pods
    )
    busy = DrainReport(is_draining=True, in_flight=3)
    status = make_plan(stopped, applied(draining, leaving, drains={leaving.uid: busy})).status
    assert (status.phase, status.reason) == ("Draining", "Draining")
    assert status.message == "1 replica drains: 3 requests in flight, at most 20 s left"
    empty = replace(busy, in_flight=0)
    stop = make_plan(stopped, applied(draining, leaving, drains={leaving.uid: empty}))
    assert find(stop, "ReplicaSet").body["spec"]["replicas"] == 0
    status = make_plan(stopped, applied(stop)).status
    assert (status.phase, status.reason) == ("Stopped", "Stopped")
    assert "kubectl scale --replicas=1" in (status.message or "")


def test_long_names_stay_within_kubernetes_bounds_and_unique() -> None:
    names: set[tuple[str, str]] = set()
    for name in ("a" * 63, "a" * 62 + "b"):
        for intent in make_plan(service(name=name)).objects:
            longest = 57 if intent.resource.kind in ("ReplicaSet", "ControllerRevision") else 63
            assert len(intent.name) <= longest
            assert intent.id not in names
            names.add(intent.id)
            for value in intent.body["metadata"]["labels"].values():
                assert len(value) <= 63


def test_the_status_survives_the_way_through_json() -> None:
    one, result, _ = settled(service(replicas=2))
    manifest = json.loads(json.dumps(result.status.to_manifest()))
    assert InferenceServiceStatus.from_manifest(manifest) == one.status


def test_a_container_that_is_created_for_long_points_to_describe() -> None:
    one = service()
    first = make_plan(one)
    slow: PodRecord = pod(revision_of(first), node="node-1", created=NOW - timedelta(seconds=130))
    status = make_plan(one, applied(first, slow)).status
    assert status.reason == "CreatingContainer"
    assert "kubectl describe pod" in (status.message or "")
