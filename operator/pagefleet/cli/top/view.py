"""What the table shows of a service, from its object alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from pagefleet.api.v1alpha1 import InferenceServiceStatus, ScalingSignals, ServicePhase

_RANKS = {
    ServicePhase.FAILED: 0,
    ServicePhase.DEGRADED: 1,
    ServicePhase.PENDING: 2,
    ServicePhase.STARTING: 2,
    ServicePhase.DOWNLOADING: 2,
    ServicePhase.LOADING: 2,
    ServicePhase.UPDATING: 3,
}
_CALM = 4
"""Rank of all other phases."""


@dataclass(frozen=True, kw_only=True)
class ServiceRow:
    """One service; None is unknown, which is never 0."""

    namespace: str
    name: str
    phase: ServicePhase | None
    ready: int
    asked: int
    desired: int | None
    """Replicas that the autoscaler wants."""
    mode: str | None
    signals: ScalingSignals
    reason: str | None
    """Why it is not ready; of a ready one, what decides its number of replicas."""
    limited_by: str | None
    conditions: tuple[str, ...]

    @property
    def rank(self) -> tuple[int, str, str]:
        """Where it stands in the table: trouble first, then by name."""
        trouble = _CALM if self.phase is None else _RANKS.get(self.phase, _CALM)
        if trouble == _CALM and (self.conditions or self.ready < self.asked):
            trouble -= 1
        return (trouble, self.namespace, self.name)


def view_services(objects: Iterable[Mapping[str, Any]]) -> list[ServiceRow]:
    """Return a row for each service, in the order of the table."""
    return sorted((view_service(one) for one in objects), key=lambda row: row.rank)


def view_service(service: Mapping[str, Any]) -> ServiceRow:
    """Return the row of one service; a status that this version cannot read counts as absent."""
    metadata, spec = service["metadata"], service.get("spec") or {}
    try:
        status = InferenceServiceStatus.model_validate(service.get("status") or {})
    except ValidationError:
        status = InferenceServiceStatus()
    scaling = status.autoscaling
    is_settled = status.phase in (ServicePhase.READY, ServicePhase.IDLE, None)
    return ServiceRow(
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        phase=status.phase,
        ready=status.ready_replicas or 0,
        asked=int(spec.get("replicas", 1)),
        desired=None if scaling is None else scaling.desired,
        mode=None if scaling is None else scaling.mode,
        signals=(scaling and scaling.signals) or ScalingSignals(),
        reason=status.reason if scaling is None or not is_settled else scaling.reason,
        limited_by=None if scaling is None else scaling.limited_by,
        conditions=() if scaling is None else scaling.conditions,
    )
