"""Kubernetes objects to the slim records that plans need. Pure."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from pagefleet.api.labels import (
    DRAIN_ANNOTATION,
    INTENT_HASH_ANNOTATION,
    POD_DELETION_COST_ANNOTATION,
    REVISION_LABEL,
    TRAFFIC_LABEL,
)
from pagefleet.operator.plan.observed import Child, Ended, PodRecord, ReplicaSetRecord
from pagefleet.operator.plan.ownership import owned_fields
from pagefleet.operator.plan.pod_template import ENGINE_CONTAINER

JsonObject = dict[str, Any]


def read_child(kind: str, item: JsonObject) -> Child:
    """Return the record of an object that the operator applies."""
    metadata = item["metadata"]
    return Child(
        kind=kind,
        name=metadata["name"],
        uid=metadata["uid"],
        intent_hash=(metadata.get("annotations") or {}).get(INTENT_HASH_ANNOTATION, ""),
        owned_fields=owned_fields(metadata),
        owner_uids=tuple(one["uid"] for one in metadata.get("ownerReferences") or ()),
        is_terminating="deletionTimestamp" in metadata,
    )


def read_replica_set(item: JsonObject) -> ReplicaSetRecord:
    """Return the record of a ReplicaSet."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    failure = next(
        (
            one.get("message") or one.get("reason") or ""
            for one in status.get("conditions") or ()
            if one.get("type") == "ReplicaFailure" and one.get("status") == "True"
        ),
        None,
    )
    return ReplicaSetRecord(
        name=metadata["name"],
        uid=metadata["uid"],
        revision=(metadata.get("labels") or {}).get(REVISION_LABEL, ""),
        replicas=spec.get("replicas", 1),
        observed_replicas=status.get("replicas") or 0,
        ready_replicas=status.get("readyReplicas") or 0,
        has_settled=(status.get("observedGeneration") or 0) >= metadata.get("generation", 0),
        failure=failure,
        is_terminating="deletionTimestamp" in metadata,
    )


def read_pod(item: JsonObject) -> PodRecord:
    """Return the record of a replica."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled") or {}
    is_waiting = scheduled.get("status") == "False" and scheduled.get("reason") in ("Unschedulable", "SchedulingGated")
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    waiting: JsonObject = next(
        (
            one["state"]["waiting"]
            for one in containers
            if (one.get("state") or {}).get("waiting", {}).get("reason")
            not in (None, "ContainerCreating", "PodInitializing", "CrashLoopBackOff")
        ),
        {},
    )
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return PodRecord(
        name=metadata["name"],
        uid=metadata["uid"],
        revision=labels.get(REVISION_LABEL, ""),
        phase=status.get("phase") or "Pending",
        created=datetime.fromisoformat(metadata["creationTimestamp"]),
        ip=status.get("podIP"),
        node=spec.get("nodeName"),
        is_ready=(conditions.get("Ready") or {}).get("status") == "True",
        is_terminating="deletionTimestamp" in metadata,
        unschedulable=(scheduled.get("message") or "no node fits") if is_waiting else None,
        waiting_reason=waiting.get("reason"),
        waiting_message=waiting.get("message") or "",
        ended=next((ended for one in containers if (ended := _ended(one))), None) or _evicted(status),
        restarts=sum(one.get("restartCount") or 0 for one in containers),
        is_running=any(
            one.get("name") == ENGINE_CONTAINER and "running" in (one.get("state") or {}) for one in containers
        ),
        traffic=labels.get(TRAFFIC_LABEL),
        drain_began=_moment(annotations.get(DRAIN_ANNOTATION)),
        deletion_cost=_whole_number(annotations.get(POD_DELETION_COST_ANNOTATION)),
        grace_s=float(spec.get("terminationGracePeriodSeconds", 30)),
    )


def _moment(text: str | None) -> datetime | None:
    """Return a time that an annotation tells; None where somebody wrote nonsense there."""
    with suppress(ValueError):
        found = datetime.fromisoformat(text or "")
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    return None


def _whole_number(text: str | None) -> int:
    with suppress(ValueError):
        return int(text or 0)
    return 0


def _ended(container: JsonObject) -> Ended | None:
    """Return how a container ended, if it does not answer now."""
    if container.get("ready"):
        return None
    ended = (container.get("state") or {}).get("terminated") or (container.get("lastState") or {}).get("terminated")
    if not ended:
        return None
    return Ended(ended.get("exitCode") or 0, ended.get("reason") or "", ended.get("message") or "")


def _evicted(status: JsonObject) -> Ended | None:
    """Return why a pod failed as a whole: evicted, or refused by its node."""
    if status.get("phase") != "Failed":
        return None
    return Ended(-1, status.get("reason") or "Failed", status.get("message") or status.get("reason") or "")
