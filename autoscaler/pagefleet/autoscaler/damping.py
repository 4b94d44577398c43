"""Everything that holds a number of replicas back, in this one place and each by its name. Pure."""

from typing import NamedTuple

from pagefleet.autoscaler.candidates import View
from pagefleet.autoscaler.decision import Reason
from pagefleet.autoscaler.observe import Demand
from pagefleet.autoscaler.settings import Settings
from pagefleet.autoscaler.state import State

FLAP_BUDGET = 1
"""Changes of direction in two lead times, at most."""
FALL_LEAD_TIMES = 3.0
"""Lead times after a rise before the first fall."""


class Outcome(NamedTuple):
    """A number, what asked for it, and what held it back."""

    desired: int
    reason: Reason
    limited_by: str | None


def damp(view: View, wanted: int, state: State, settings: Settings, *, has_asked: bool) -> tuple[int, str | None]:
    """Return the number that may be set now, and what held it back; `has_asked` is whether any term could tell."""
    current, now_s = view.snapshot.specified, view.snapshot.time_s
    if view.has_clock_jumped:
        return current, "clockJump"
    if not has_asked:
        return current, "signalMissing" if view.ready else None
    target = wanted + view.stuck  # in place of those that cannot be counted on
    if target > current:
        most, limit = current + max(2, current), "upStep"
        schedulable = view.snapshot.schedulable
        if schedulable is not None and current + schedulable < min(target, most):
            most, limit = current + schedulable, "accelerators"
        return min(target, most), limit if target > most else None
    highest, kept = max(want.replicas for want in state.wants), state.wants[-1].replicas
    if wanted == current:
        return current, None
    if view.counted > view.ready:
        return current, "pendingReplicas"
    if not view.is_fresh:
        return current, "signalMissing"
    if highest >= current:
        return current, "fallMargin" if kept >= current else "downWindow"
    if now_s - max(state.scaled_down_s, state.guarded_s) < settings.down_interval_s:
        return current, "downInterval"
    may_turn = now_s - state.scaled_up_s >= FALL_LEAD_TIMES * view.demand.lead_time_s
    if state.was_up and (is_flapping(view, state) or not may_turn):
        return current, "flapBudget"
    target = max(highest, current - max(1, int(settings.down_share * current)))
    while target < current and not _holds(view, target - view.spare, settings):
        target += 1
    return target, "consolidation" if target > highest else None


def _holds(view: View, replicas: int, settings: Settings) -> bool:
    """Tell whether the load, put on fewer replicas, stays within rate and cache."""
    demand, replicas = view.demand, max(1, replicas)
    if view.rate is not None:
        load = max(demand.rate_short, demand.rate_long) / (view.rate * replicas)
        if load > settings.consolidation_share * settings.load_share:
            return False
    readings = view.snapshot.ready_readings
    blocks = max((reading.blocks_total for reading in readings), default=0)
    held = sum(reading.blocks_active for reading in readings)
    return not blocks or held <= settings.kv_occupancy_target * blocks * replicas


def is_flapping(view: View, state: State) -> bool:
    """Tell whether the changes of direction of two lead times are used up."""
    since_s = view.snapshot.time_s - 2 * view.demand.lead_time_s
    return sum(time_s > since_s for time_s in state.reversals_s) >= FLAP_BUDGET


def down_window_s(demand: Demand, settings: Settings) -> float:
    """Return for how long what was wanted holds a scale-down back."""
    return max(settings.down_window_s, 2 * demand.lead_time_s)


def bound(
    current: int, desired: int, limited_by: str | None, binding: str, settings: Settings, *, scheduled: int | None
) -> Outcome:
    """Keep the number within the user's bounds, schedule and pauses, and name what decided."""
    least = max(settings.min_replicas, 1)
    is_scheduled = scheduled is not None and scheduled > least
    bounded = min(max(desired, least, scheduled or 0), settings.max_replicas)
    if bounded != desired:
        limited_by = "maxReplicas" if bounded < desired else "schedule" if is_scheduled else "minReplicas"
    if bounded == current:
        return Outcome(bounded, Reason.STEADY, limited_by)
    if limited_by == "schedule" and current < bounded and (current == 0 or desired <= current):
        return pause(current, Outcome(bounded, Reason.SCHEDULE, limited_by), settings)
    if current == 0:
        return pause(current, Outcome(bounded, Reason.WAKE_UP, limited_by), settings)
    if bounded != desired and (bounded > current) != (desired > current):
        return pause(current, Outcome(bounded, Reason.BOUNDS, limited_by), settings)
    reason = Reason.LESS_DEMAND if bounded < current else _REASONS.get(binding, Reason.DEMAND)
    return pause(current, Outcome(bounded, reason, limited_by), settings)


def pause(current: int, outcome: Outcome, settings: Settings) -> Outcome:
    """Hold what the user has paused, also against the bounds: a pause is the later word."""
    if outcome.desired > current and not settings.may_scale_up:
        return Outcome(current, Reason.STEADY, "pausedScaleUp")
    if outcome.desired < current and not settings.may_scale_down:
        return Outcome(current, Reason.STEADY, "pausedScaleDown")
    return outcome


_REASONS = {
    "demand": Reason.DEMAND,
    "backlog": Reason.BACKLOG,
    "kvOccupancy": Reason.KV_OCCUPANCY,
    "queueDepth": Reason.QUEUE_DEPTH,
    "guard": Reason.GUARD,
}
