"""Whose `spec.replicas` is: another writer of it while the mode is Active is never fought. Pure.

unclaimed --Active--> ours --another writes--> foreign --the number is ours again, or Active is left--> ours, unclaimed
"""

from dataclasses import dataclass, replace

from pagefleet.autoscaler.records import ServiceRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """Another writer of the replicas."""

    manager: str
    """Its field manager, such as kubectl-edit or kube-controller-manager (an HPA)."""
    replicas: int
    """What it wrote."""

    def sentence(self, expected: int | None) -> str:
        """Say what happened and how to go on."""
        ours = "" if expected is None else f" where the autoscaler had {expected}"
        back = "" if expected is None else f"spec.replicas back to {expected}, or "
        return (
            f"{self.manager} set spec.replicas to {self.replicas}{ours}, so nothing is scaled; to go on, set {back}"
            "autoscaling.mode to Recommend and then to Active again"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """What is known of the replicas of one service."""

    expected: int | None = None
    """What the autoscaler wrote last, or found when it began; None while it is not to write, or does not know."""
    foreign: Foreign | None = None
    is_claimed: bool = False
    """Whether the mode was Active."""


def look(before: Ownership | None, record: ServiceRecord, *, is_active: bool) -> Ownership:
    """Return whose the replicas are; `before` is None when the service is first seen."""
    if not is_active:
        return Ownership()
    if before is None:
        return _first_look(record)
    replicas = record.service.spec.replicas
    if not before.is_claimed or replicas == before.expected or _is_ours(record):
        return Ownership(expected=replicas, is_claimed=True)
    if before.expected == 0 and before.foreign is None:
        return Ownership(expected=replicas, is_claimed=True)  # somebody wakes a service that was put to sleep
    return replace(before, foreign=_foreign(record))


def _first_look(record: ServiceRecord) -> Ownership:
    """Go on where another process ended: its last decision and its conflict are in the status."""
    status, replicas = record.service.status.autoscaling, record.service.spec.replicas
    ours = Ownership(expected=replicas, is_claimed=True)
    if status is None or status.mode not in ("Active", "Conflict") or _is_ours(record):
        return ours
    last = status.last_decisions[0] if status.last_decisions else None
    if last is not None and last.to_replicas in (0, replicas):
        return ours
    if status.mode == "Conflict":
        expected = None if last is None else last.to_replicas
        return Ownership(expected=expected, foreign=_foreign(record), is_claimed=True)
    writer = record.replicas_writer
    if last is None or writer is None or writer.time is None or writer.time <= last.time:
        return ours
    return Ownership(expected=last.to_replicas, foreign=_foreign(record), is_claimed=True)


def _is_ours(record: ServiceRecord) -> bool:
    return record.replicas_writer is not None and record.replicas_writer.is_autoscaler


def _foreign(record: ServiceRecord) -> Foreign:
    writer = record.replicas_writer
    return Foreign(manager="somebody" if writer is None else writer.manager, replicas=record.service.spec.replicas)
