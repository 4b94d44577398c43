"""Services and what is observed of them, one line each."""

from datetime import UTC, datetime, timedelta
from typing import Any

from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.operator.plan.controller_revision import read_controller_revision
from pagefleet.operator.plan.intent import Intent
from pagefleet.operator.plan.observed import Child, Observed, PodRecord, ReplicaSetRecord, RevisionRecord
from pagefleet.operator.plan.planner import Plan, plan
from pagefleet.operator.plan.settings import RenderSettings

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SETTINGS = RenderSettings(
    engine_image="registry.example/engine@sha256:0123", operator_version="0.1.0", operator_namespace="pagefleet-system"
)


def service(uri: str = "hf://organisation/model", *, name: str = "chat", **spec: Any) -> InferenceService:
    """Return a service of generation 1."""
    metadata = {"name": name, "namespace": "team", "uid": "uid-of-service", "generation": 1}
    metadata |= {key: spec.pop(key) for key in ("annotations", "generation") if key in spec}
    status = spec.pop("status", {})
    return InferenceService.from_manifest(
        {"metadata": metadata, "spec": {"model": {"uri": uri}, **spec}, "status": status}
    )


def pod(revision: str, number: int = 1, **fields: Any) -> PodRecord:
    """Return a replica that was just created."""
    base: dict[str, Any] = {
        "name": f"chat-{revision}-{number}",
        "uid": f"uid-{revision}-{number}",
        "revision": revision,
        "phase": "Pending",
        "created": NOW - timedelta(seconds=5),
        "traffic": "on",
    }
    return PodRecord(**{**base, **fields})


def ready_pod(revision: str, number: int = 1) -> PodRecord:
    """Return a replica that answers."""
    return pod(revision, number, phase="Running", node="node-1", ip="10.0.0.1", is_ready=True, is_running=True)


def replica_set(revision: str, replicas: int, ready: int | None = None, **fields: Any) -> ReplicaSetRecord:
    """Return a ReplicaSet whose controller has followed; by default all its replicas answer."""
    base: dict[str, Any] = {
        "name": f"chat-{revision}",
        "uid": f"uid-rs-{revision}",
        "revision": revision,
        "replicas": replicas,
        "observed_replicas": replicas,
        "ready_replicas": replicas if ready is None else ready,
        "has_settled": True,
    }
    return ReplicaSetRecord(**{**base, **fields})


def make_plan(one: InferenceService, observed: Observed | None = None, settings: RenderSettings = SETTINGS) -> Plan:
    """Plan at a fixed moment."""
    return plan(one, observed or Observed(), settings, NOW)


def find(result: Plan, kind: str) -> Intent:
    """Return the one object of a kind."""
    (found,) = [one for one in result.objects if one.resource.kind == kind]
    return found


def stored(intent: Intent) -> RevisionRecord:
    """Return an applied ControllerRevision as it is read back."""
    record = read_controller_revision(intent.body)
    assert record is not None
    return record


def child(intent: Intent, owned_fields: str = "") -> Child:
    """Return an applied object as it is observed."""
    kind, name = intent.id
    return Child(kind, name, f"uid-{kind}-{name}", intent.hash, owned_fields)


def applied(result: Plan, *pods: PodRecord, **fields: Any) -> Observed:
    """Return what is observed once a plan's objects exist and its pods are these."""
    sets = [one for one in result.objects if one.resource.kind == "ReplicaSet"]
    revisions = [one for one in result.objects if one.resource.kind == "ControllerRevision"]
    records = []
    for one in sets:
        revision = one.body["metadata"]["labels"]["serving.pagefleet.io/revision"]
        mine = [each for each in pods if each.revision == revision and not each.is_terminating]
        replicas = one.body["spec"]["replicas"]
        records.append(
            replica_set(revision, replicas, sum(each.is_ready for each in mine), observed_replicas=len(mine))
        )
    return Observed(
        children={one.id: child(one) for one in result.objects},
        replica_sets=tuple(records),
        pods=pods,
        revisions=tuple(stored(one) for one in revisions),
        **fields,
    )


def revision_of(result: Plan) -> str:
    """Return the revision that a plan updates to."""
    updated = result.status.revisions.updated
    assert updated is not None
    return updated
