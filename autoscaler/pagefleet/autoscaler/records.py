"""Kubernetes objects to the records that decisions need. Pure."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from pagefleet.api.base import JsonObject
from pagefleet.api.labels import AUTOSCALER_FIELD_MANAGER, SERVICE_LABEL, TRAFFIC_LABEL, TRAFFIC_OFF
from pagefleet.api.v1alpha1 import InferenceService


class ServiceKey(NamedTuple):
    """The identity of a service by name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasWriter:
    """Who last set `spec.replicas`, by the object's managed fields."""

    manager: str
    time: datetime | None
    is_autoscaler: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRecord:
    """An InferenceService as the autoscaler knows it."""

    key: ServiceKey
    uid: str
    version: str
    """resourceVersion, for writes that must not pass over another's."""
    generation: int
    service: InferenceService
    replicas_writer: ReplicasWriter | None
    is_terminating: bool
    ttft_slo_s: float | None = None
    itl_slo_s: float | None = None
    """Objectives in seconds, by which latencies are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """An engine pod; times in seconds since 1970."""

    service: ServiceKey
    name: str
    uid: str
    created_s: float
    is_ready: bool
    ready_changed_s: float | None
    """When it last became ready, or stopped to be."""
    ip: str | None
    is_leaving: bool
    """Whether it is being deleted, or takes no new requests."""
    is_unschedulable: bool = False
    """Whether the scheduler has found no node with room for it."""


def read_service(item: JsonObject) -> ServiceRecord:
    """Return the record of an InferenceService. Raises `pydantic.ValidationError` for one that a newer CRD allows."""
    metadata = item["metadata"]
    body: JsonObject = {name: item[name] for name in ("apiVersion", "kind", "spec", "status") if name in item}
    slim = {name: metadata[name] for name in ("name", "namespace", "uid") if name in metadata}
    service = InferenceService.from_manifest({**body, "metadata": slim})
    autoscaling = service.spec.autoscaling
    return ServiceRecord(
        key=ServiceKey(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        generation=metadata.get("generation") or 0,
        service=service,
        replicas_writer=_replicas_writer(metadata),
        is_terminating="deletionTimestamp" in metadata,
        ttft_slo_s=None if autoscaling is None else autoscaling.slo.ttft_s,
        itl_slo_s=None if autoscaling is None else autoscaling.slo.itl_s,
    )


def read_pod(item: JsonObject) -> PodRecord | None:
    """Return the record of an engine pod; None for one that is over, or belongs to no service."""
    metadata, status = item["metadata"], item.get("status") or {}
    labels = metadata.get("labels") or {}
    name = labels.get(SERVICE_LABEL)
    if not name or status.get("phase") in ("Failed", "Succeeded"):
        return None
    conditions: dict[str, Any] = {one.get("type"): one for one in status.get("conditions") or ()}
    ready, scheduled = conditions.get("Ready") or {}, conditions.get("PodScheduled") or {}
    changed = ready.get("lastTransitionTime")
    return PodRecord(
        service=ServiceKey(metadata["namespace"], name),
        name=metadata["name"],
        uid=metadata["uid"],
        created_s=datetime.fromisoformat(metadata["creationTimestamp"]).timestamp(),
        is_ready=ready.get("status") == "True",
        ready_changed_s=datetime.fromisoformat(changed).timestamp() if changed else None,
        ip=status.get("podIP"),
        is_leaving="deletionTimestamp" in metadata or labels.get(TRAFFIC_LABEL) == TRAFFIC_OFF,
        is_unschedulable=scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable",
    )


def _replicas_writer(metadata: dict[str, Any]) -> ReplicasWriter | None:
    """Return who decided `spec.replicas` last: the owner of the field, the latest where several agree on its value."""
    owners = [
        entry
        for entry in metadata.get("managedFields") or ()
        if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    if not owners:
        return None
    latest = max(owners, key=lambda entry: entry.get("time") or "")
    if any(entry.get("manager") == AUTOSCALER_FIELD_MANAGER for entry in owners):
        latest = next(entry for entry in owners if entry.get("manager") == AUTOSCALER_FIELD_MANAGER)
    time = latest.get("time")
    return ReplicasWriter(
        manager=latest.get("manager") or "unknown",
        time=datetime.fromisoformat(time) if time else None,
        is_autoscaler=latest.get("manager") == AUTOSCALER_FIELD_MANAGER,
    )
