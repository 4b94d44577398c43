"""Conditions of a service: their types, and pure functions that set and summarise them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from pagefleet.api.base import NonNegativeInteger, StatusModel, Timestamp

READY = "Ready"
"""Requests are answered. The one that people and tools wait for."""
PLAN_ACCEPTED = "PlanAccepted"
"""The model fits the accelerator with the settings asked for; the message has the numbers, and a fix if not.
Where nobody can tell before the engine does, it is True with reason `NotPlanned`."""
PLAN_MATCHES = "PlanMatches"
"""What the engine measured is within 5 % of the plan; absent where one of the two is not known."""
AVAILABLE = "Available"
"""At least one replica, of any revision, answers requests."""
PROGRESSING = "Progressing"
"""The newest revision is on its way. False with reason `DeadlineExceeded` once it made no headway for too long."""
UP_TO_DATE = "UpToDate"
"""Pods run the template that this operator version would render. False is drift, which only the user resolves."""
AUTOSCALING_ACTIVE = "AutoscalingActive"
"""The autoscaler reads this service and acts on it."""

READY_NEEDS = (PLAN_ACCEPTED, AVAILABLE)
"""What Ready is made of, the most telling first: a refused plan explains missing replicas, never the reverse."""

REASON_PATTERN = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"


class ConditionStatus(StrEnum):
    """Whether a condition holds; Unknown when nobody could tell yet."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(StatusModel):
    """One observation about a service, in the shape of Kubernetes' `metav1.Condition`."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """What is observed, such as Ready."""
    status: ConditionStatus
    """True, False or Unknown."""
    reason: Annotated[str, Field(pattern=REASON_PATTERN, max_length=1024)]
    """One CamelCase word that programs can match, such as OutOfMemory."""
    message: Annotated[str, Field(max_length=32768)] = ""
    """A sentence for people, with the numbers."""
    last_transition_time: Timestamp
    """When `status` last changed. A new reason or message does not move it."""
    observed_generation: NonNegativeInteger | None = None
    """The `metadata.generation` that the observation is about."""


@dataclass(frozen=True)
class Readiness:
    """Why a service is ready or not, in the terms of the condition that decides it."""

    status: ConditionStatus
    reason: str
    message: str


def find_condition(conditions: Iterable[Condition], condition_type: str) -> Condition | None:
    """Return the condition of a type, or None."""
    return next((condition for condition in conditions if condition.type == condition_type), None)


def set_condition(
    conditions: Iterable[Condition],
    condition_type: str,
    status: ConditionStatus,
    reason: str,
    message: str = "",
    *,
    now: datetime,
    observed_generation: int | None = None,
) -> tuple[Condition, ...]:
    """Return the conditions with one added or replaced, sorted by type so that equal states compare equal.

    `now` becomes the transition time only where the status differs from the one before.
    """
    kept = {condition.type: condition for condition in conditions}
    before = kept.get(condition_type)
    kept[condition_type] = Condition(
        type=condition_type,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=before.last_transition_time if before and before.status == status else now,
        observed_generation=observed_generation,
    )
    return tuple(kept[name] for name in sorted(kept))


def merge_conditions(before: Iterable[Condition], observed: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return `before` overlaid with newly observed conditions, each of which brings its own time as `now`."""
    merged = tuple(before)
    for condition in observed:
        merged = set_condition(
            merged,
            condition.type,
            condition.status,
            condition.reason,
            condition.message,
            now=condition.last_transition_time,
            observed_generation=condition.observed_generation,
        )
    return merged


def readiness(conditions: Iterable[Condition]) -> Readiness:
    """Summarise `READY_NEEDS` into what the Ready condition should say.

    The first False one decides; else the first Unknown or missing one; else the service is ready.
    """
    by_type = {condition.type: condition for condition in conditions}
    needs = [(name, by_type.get(name)) for name in READY_NEEDS]
    for _, condition in needs:
        if condition and condition.status == ConditionStatus.FALSE:
            return Readiness(ConditionStatus.FALSE, condition.reason, condition.message)
    for name, condition in needs:
        if condition is None:
            return Readiness(ConditionStatus.UNKNOWN, f"{name}Unknown", f"{name} has not been observed yet")
        if condition.status == ConditionStatus.UNKNOWN:
            return Readiness(ConditionStatus.UNKNOWN, condition.reason, condition.message)
    last = by_type[READY_NEEDS[-1]]
    return Readiness(ConditionStatus.TRUE, last.reason, last.message)
