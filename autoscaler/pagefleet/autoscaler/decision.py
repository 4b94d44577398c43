"""One outcome with its inputs, its binding reason and its limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Reason(StrEnum):
    """What decided. Stable names: status, events, metrics and alerts use them."""

    STEADY = "Steady"
    DEMAND = "Demand"
    """The forecast rate of requests over what a replica serves within the objectives."""
    BACKLOG = "Backlog"
    """Requests that wait and must be worked off."""
    KV_OCCUPANCY = "KvOccupancy"
    QUEUE_DEPTH = "QueueDepth"
    GUARD = "Guard"
    """Objectives are missed, or sequences preempted, although the load says that this cannot be."""
    LESS_DEMAND = "LessDemand"
    BOUNDS = "Bounds"
    """The number was outside minReplicas and maxReplicas."""
    SCHEDULE = "Schedule"
    """The user's schedule asks for more than the load does."""
    IDLE = "Idle"
    """No request for the time after which the service may stop."""
    WAKE_UP = "WakeUp"
    """Requests are held for a service without replicas."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """How many replicas there should be, and why."""

    desired: int
    current: int
    reason: Reason
    limited_by: str | None = None
    """What held the number back: a bound, a window, a missing signal."""
    unlimited: int = 0
    """What the load asks for, without `limited_by`."""
    candidates: Mapping[str, float] = field(default_factory=dict)
    """Replicas that each term asks for, before rounding."""
    forecast_per_s: float | None = None
    service_rate_per_s: float | None = None
    """Requests per second that one replica serves within the objectives."""
    speed_source: str | None = None
    """`plan`, `corrected` by what was measured, or `learned` without a plan; None where the speed is unknown."""
    lead_time_s: float | None = None
    conditions: tuple[str, ...] = ()
    """What people should know: StuckPending, Imbalanced, Flapping, SignalMissing, SloUnreachable, SloMissed,
    UnusableReport, ClockJump, ImpossibleSettings, ScheduleIgnored."""
    notes: tuple[str, ...] = ()
    """A sentence with numbers for each condition that has some."""

    @property
    def counterfactual(self) -> str | None:
        """Return what it would be without the limit, such as `6 without downWindow`; None where nothing holds it."""
        if self.limited_by is None or self.unlimited == self.desired:
            return None
        return f"{self.unlimited} without {self.limited_by}"
