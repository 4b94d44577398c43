"""The lead-time capacity policy: size for the demand at the moment when a replica created now would serve.

Offered work over the service rate within the objectives gives the number. Queues, preemptions and late first tokens
only correct and guard it; occupancy of the KV cache is one of the limits inside the service rate, and the user's own.
One pure function, so that controller, `play`, simulator and replay run the same code.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from pagefleet.autoscaler.decision import Decision, Reason
from pagefleet.autoscaler.observe import Demand, observe
from pagefleet.autoscaler.settings import Settings
from pagefleet.autoscaler.snapshot import Replica, Snapshot
from pagefleet.autoscaler.state import State, Want
from pagefleet.capacity.step_time import serve
from pagefleet.capacity.workload import Lengths, Workload

STUCK_LEAD_TIMES = 2.0
"""A replica that is pending for longer than so many lead times is no longer counted on."""
ROUNDING = 0.1
"""Share of a replica that is not worth one more."""
CORRECTOR_UP = 1.02
CORRECTOR_DOWN = 0.9998
FLAP_BUDGET = 1
"""Changes of direction in two lead times, at most."""
HELPED = 0.9
"""A replica of the guard has helped where no more than this of the missed share is left."""
MOST_IN_VAIN = 5
IMBALANCE = 1.5
IMBALANCED_TICKS = 3


class _Outcome(NamedTuple):
    desired: int
    reason: Reason
    limited_by: str | None


@dataclass(frozen=True, kw_only=True)
class _View:
    """What the terms of one decision share."""

    snapshot: Snapshot
    demand: Demand
    ready: int
    counted: int
    """Ready replicas, and pending ones that can be counted on."""
    stuck: int
    is_fresh: bool
    rate: float | None
    """Requests per second of one replica within the objectives; None is not known."""


def decide(snapshot: Snapshot, state: State, settings: Settings) -> tuple[Decision, State]:
    """Return how many replicas there should be, and what to remember for the next decision."""
    demand, state = observe(snapshot, state, settings)
    view = _look(snapshot, demand, state, settings)
    candidates = _candidates(view, settings)
    guard = _guard(view, state, settings)
    state = _correct(view, state, settings, is_missing=guard)
    if guard:
        candidates["guard"] = view.counted + max(1.0, 0.1 * view.counted)
    binding = max(candidates, key=lambda name: candidates[name], default="")
    wanted = max(1, math.ceil(candidates[binding] - ROUNDING)) if candidates else snapshot.specified
    now_s = snapshot.time_s
    seed = () if state.wants else (Want(now_s, snapshot.specified),)  # what was before is taken for wanted
    wants = (
        *seed,
        *(want for want in state.wants if want.time_s > now_s - _down_window_s(demand, settings)),
        Want(now_s, wanted),
    )
    state = replace(state, wants=wants)
    state = _notice_requests(view, state, settings)
    if _may_sleep(view, state, settings):
        outcome = _Outcome(0, Reason.IDLE, None)
    else:
        outcome = _bound(snapshot.specified, *_damp(view, wanted, state, settings), binding, settings)
    decision = Decision(
        desired=outcome.desired,
        current=snapshot.specified,
        reason=outcome.reason,
        limited_by=outcome.limited_by,
        unlimited=wanted,
        candidates=candidates,
        forecast_per_s=demand.forecast,
        service_rate_per_s=view.rate,
        lead_time_s=demand.lead_time_s,
        conditions=_conditions(view, state, settings),
    )
    return decision, _remember(decision, view, state, guarded=guard and binding == "guard")


# ---- the terms ----


def _look(snapshot: Snapshot, demand: Demand, state: State, settings: Settings) -> _View:
    stuck = sum(
        snapshot.time_s - replica.created_s > STUCK_LEAD_TIMES * demand.lead_time_s for replica in snapshot.pending
    )
    ready = len(snapshot.ready)
    fresh = len(snapshot.fresh(settings.stale_after_s))
    return _View(
        snapshot=snapshot,
        demand=demand,
        ready=ready,
        counted=ready + len(snapshot.pending) - stuck,
        stuck=stuck,
        is_fresh=ready > 0 and fresh >= settings.least_fresh_share * ready,
        rate=_service_rate(state, settings),
    )


def _service_rate(state: State, settings: Settings) -> float | None:
    """Return the requests per second that one replica serves within the objectives, for the lengths seen lately."""
    speed = settings.speed
    if speed is None:
        return None
    workload = Workload(
        prompt_tokens=Lengths(max(1.0, state.prompt_tokens or settings.prompt_tokens)),
        output_tokens=Lengths(max(1.0, state.output_tokens or settings.output_tokens)),
        shared_prefix=state.hit_share,
        itl_s=settings.itl_slo_s,
    )
    service = serve(
        speed.step.times(state.time_scale),
        workload,
        kv_tokens=speed.kv_tokens,
        block_size=speed.block_size,
        max_num_seqs=speed.max_num_seqs,
        chunk=speed.max_num_batched_tokens,
    )
    return None if service.requests_per_s is None else service.requests_per_s / state.corrector


def _candidates(view: _View, settings: Settings) -> dict[str, float]:
    """Return the replicas that each term asks for."""
    demand, candidates = view.demand, _targets(view, settings)
    if view.rate is None:
        return candidates
    share = settings.load_share
    candidates["demand"] = demand.forecast / (view.rate * share)
    served = view.rate * view.ready
    ttft_s = settings.ttft_slo_s or 0.0
    backlog = demand.queued + 0.5 * demand.lead_time_s * max(0.0, demand.rate_short - served)
    excess = max(0.0, backlog - 0.5 * ttft_s * served)
    if excess:
        candidates["backlog"] = _to_work_off(excess, view, settings)
    return candidates


def _targets(view: _View, settings: Settings) -> dict[str, float]:
    """Return what the user's own limits ask for; both are always honoured."""
    fresh = [replica.reading for replica in view.snapshot.fresh(settings.stale_after_s) if replica.reading is not None]
    if not fresh:
        return {}
    candidates = {"kvOccupancy": sum(reading.occupancy for reading in fresh) / settings.kv_occupancy_target}
    waiting = sum(
        reading.queue_depth
        for reading in fresh
        if settings.ttft_slo_s is None or reading.queue_age_s > settings.ttft_slo_s
    )
    excess = waiting - settings.queue_depth_target * len(fresh)
    if excess > 0:
        candidates["queueDepth"] = _to_work_off(excess, view, settings)
    return candidates


def _to_work_off(requests: float, view: _View, settings: Settings) -> float:
    """Return the replicas that serve the present rate and work off a backlog in time.

    A backlog is no rate: replicas in proportion to it would be far too many once they serve.
    """
    if view.rate is None:
        return view.counted + 1.0 if view.counted == view.ready else float(view.counted)
    present = view.demand.rate_short / (view.rate * settings.load_share)
    return present + requests / (view.rate * settings.drain_backlog_s)


def _guard(view: _View, state: State, settings: Settings) -> bool:
    """Tell whether objectives are missed although nothing is on its way.

    Some requests cannot be served in time by any number of replicas, such as a very long prompt. So after each replica
    that has not helped the guard waits twice as long.
    """
    demand, snapshot = view.demand, view.snapshot
    patience_s = demand.lead_time_s * 2.0**state.guards_in_vain
    if view.counted > view.ready or snapshot.time_s - max(state.scaled_up_s, state.guarded_s) <= demand.lead_time_s:
        return False
    if snapshot.time_s - state.guarded_s <= patience_s:
        return False
    return demand.missed_share > settings.late_share or demand.preemptions > 2


def _correct(view: _View, state: State, settings: Settings, *, is_missing: bool) -> State:
    """Trust the service rate less while objectives are missed below the planned load, and more again, slowly."""
    factor = CORRECTOR_DOWN
    if is_missing and view.rate is not None and view.ready:
        load = view.demand.rate_short / (view.rate * view.ready)
        if load < settings.load_share:
            factor = CORRECTOR_UP
    corrector = min(max(state.corrector * factor, settings.least_corrector), settings.most_corrector)
    return replace(state, corrector=corrector)


# ---- damping, in this one place ----


def _damp(view: _View, wanted: int, state: State, settings: Settings) -> tuple[int, str | None]:
    """Return the number that may be set now, and what held it back."""
    current, now_s = view.snapshot.specified, view.snapshot.time_s
    target = wanted + view.stuck  # in place of those that cannot be counted on
    if target > current:
        most = current + max(2, current)
        return min(target, most), "upStep" if target > most else None
    highest = max(want.replicas for want in state.wants)
    if wanted == current:
        return current, None
    if not view.is_fresh:
        return current, "signalMissing"
    if view.counted > view.ready:
        return current, "pendingReplicas"
    if highest >= current:
        return current, "downWindow"
    if now_s - max(state.scaled_down_s, state.guarded_s) < settings.down_interval_s:
        return current, "downInterval"
    if _is_flapping(view, state) and state.was_up:
        return current, "flapBudget"
    target = max(highest, current - max(1, int(settings.down_share * current)))
    while target < current and not _holds(view, target, settings):
        target += 1
    return target, "consolidation" if target > highest else None


def _holds(view: _View, replicas: int, settings: Settings) -> bool:
    """Tell whether the load, put on fewer replicas, stays within rate and cache."""
    demand = view.demand
    if view.rate is not None:
        load = max(demand.rate_short, demand.rate_long) / (view.rate * replicas)
        if load > settings.consolidation_share * settings.load_share:
            return False
    readings = [replica.reading for replica in view.snapshot.ready if replica.reading is not None]
    blocks = max((reading.blocks_total for reading in readings), default=0)
    held = sum(reading.blocks_active for reading in readings)
    return not blocks or held <= settings.kv_occupancy_target * blocks * replicas


def _is_flapping(view: _View, state: State) -> bool:
    since_s = view.snapshot.time_s - 2 * view.demand.lead_time_s
    return sum(time_s > since_s for time_s in state.reversals_s) >= FLAP_BUDGET


def _down_window_s(demand: Demand, settings: Settings) -> float:
    return max(settings.down_window_s, 2 * demand.lead_time_s)


def _bound(current: int, desired: int, limited_by: str | None, binding: str, settings: Settings) -> _Outcome:
    """Keep the number within the user's bounds, and name what decided."""
    bounded = min(max(desired, settings.min_replicas, 1), settings.max_replicas)
    if bounded != desired:
        limited_by = "maxReplicas" if bounded < desired else "minReplicas"
    if bounded == current:
        return _Outcome(bounded, Reason.STEADY, limited_by)
    if current == 0:
        return _Outcome(bounded, Reason.WAKE_UP, limited_by)
    if bounded != desired and (bounded > current) != (desired > current):
        return _Outcome(bounded, Reason.BOUNDS, limited_by)
    return _Outcome(bounded, Reason.LESS_DEMAND if bounded < current else _REASONS[binding], limited_by)


# ---- zero ----


def _notice_requests(view: _View, state: State, settings: Settings) -> State:
    """Remember when there was a request; a replica that says nothing may have one."""
    now_s, snapshot = view.snapshot.time_s, view.snapshot
    is_idle = (
        view.demand.arrived == 0
        and snapshot.held_requests == 0
        and not snapshot.pending
        and len(snapshot.ready) == len(snapshot.replicas)
        and len(snapshot.fresh(settings.stale_after_s)) == len(snapshot.ready)
        and all(replica.reading is not None and replica.reading.in_flight == 0 for replica in snapshot.ready)
    )
    return state if is_idle and state.asked_s is not None else replace(state, asked_s=now_s)


def _may_sleep(view: _View, state: State, settings: Settings) -> bool:
    """Tell whether the service has been idle, by reports of all its replicas, for the time that the user wrote."""
    if settings.idle_to_zero_s is None or view.snapshot.held_requests:
        return False
    if view.snapshot.specified == 0:
        return True
    return state.asked_s is not None and view.snapshot.time_s - state.asked_s >= settings.idle_to_zero_s


# ---- what is told and remembered ----

_REASONS = {
    "demand": Reason.DEMAND,
    "backlog": Reason.BACKLOG,
    "kvOccupancy": Reason.KV_OCCUPANCY,
    "queueDepth": Reason.QUEUE_DEPTH,
    "guard": Reason.GUARD,
}


def _conditions(view: _View, state: State, settings: Settings) -> tuple[str, ...]:
    conditions = []
    if view.stuck:
        conditions.append("StuckPending")
    if view.ready and not view.is_fresh:
        conditions.append("SignalMissing")
    if state.imbalanced_ticks >= IMBALANCED_TICKS:
        conditions.append("Imbalanced")
    if _is_flapping(view, state):
        conditions.append("Flapping")
    if settings.speed is not None and view.rate is None:
        conditions.append("SloUnreachable")
    return tuple(conditions)


def _imbalance(replicas: tuple[Replica, ...]) -> float:
    loads = [replica.reading.in_flight for replica in replicas if replica.reading is not None]
    total = sum(loads)
    return max(loads) * len(loads) / total if len(loads) > 1 and total else 1.0


def _remember(decision: Decision, view: _View, state: State, *, guarded: bool) -> State:
    now_s, ready = view.snapshot.time_s, view.snapshot.ready
    ticks = state.imbalanced_ticks + 1 if _imbalance(ready) > IMBALANCE else 0
    state = replace(state, imbalanced_ticks=ticks)
    if decision.desired == decision.current:
        return state
    is_up = decision.desired > decision.current
    if state.was_up is not None and state.was_up != is_up:
        state = replace(state, reversals_s=(*state.reversals_s, now_s)[-10:])
    state = replace(
        state,
        was_up=is_up,
        scaled_up_s=now_s if is_up else state.scaled_up_s,
        scaled_down_s=state.scaled_down_s if is_up else now_s,
    )
    return _remember_guard(view, state) if guarded else state


def _remember_guard(view: _View, state: State) -> State:
    share = view.demand.missed_share_long
    in_vain = state.guarded_share > 0 and share > HELPED * state.guarded_share
    return replace(
        state,
        guarded_s=view.snapshot.time_s,
        guarded_share=share,
        guards_in_vain=min(state.guards_in_vain + 1, MOST_IN_VAIN) if in_vain else 0,
    )
