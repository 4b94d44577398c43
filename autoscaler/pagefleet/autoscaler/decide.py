"""The lead-time capacity policy: size for the demand at the moment when a replica created now would serve.

Offered work over the service rate within the objectives gives the number. Queues, preemptions and late first tokens
only correct and guard it; occupancy of the KV cache is one of the limits inside the service rate, and the user's own.
One pure function, so that controller, `play`, simulator and replay run the same code.
"""

import math
from collections.abc import Mapping

from pagefleet.autoscaler.candidates import View, ask, look
from pagefleet.autoscaler.damping import Outcome, bound, damp, down_window_s, is_flapping, pause
from pagefleet.autoscaler.decision import Decision, Reason
from pagefleet.autoscaler.observe import observe
from pagefleet.autoscaler.schedule import schedule_mistakes, scheduled_minimum
from pagefleet.autoscaler.settings import Settings
from pagefleet.autoscaler.snapshot import Replica, Snapshot
from pagefleet.autoscaler.speed import speed_source
from pagefleet.autoscaler.state import State, Want
from pagefleet.autoscaler.trust import follow_clock, trusted

ROUNDING = 0.1
"""Share of a replica that is not worth one more."""
FALL_MARGIN = 0.1
"""Share by which the load must be below what fewer replicas carry, so that its next wave does not undo the fall."""
CORRECTOR_UP = 1.005
CORRECTOR_DOWN = 0.9998
HELPED = 0.9
"""A replica of the guard has helped where no more than this of the missed share is left."""
MOST_IN_VAIN = 5
IMBALANCE = 1.5
IMBALANCED_TICKS = 3


def decide(snapshot: Snapshot, state: State, settings: Settings) -> tuple[Decision, State]:
    """Return how many replicas there should be, and what to remember for the next decision."""
    snapshot, garbage = trusted(snapshot, state)
    state, has_jumped = follow_clock(state, snapshot.time_s)
    demand, state = observe(snapshot, state, settings, is_baseline=has_jumped)
    view = look(snapshot, demand, state, settings, garbage=garbage, has_clock_jumped=has_jumped)
    state = _notice_requests(view, state, settings)
    if settings.mistake is not None:
        return _hold(view, state, settings, settings.mistake), state
    candidates = ask(view, settings)
    is_missing = _is_missing(view, state, settings)
    guard = is_missing and _is_patience_over(view, state)
    state = _correct(view, state, settings, is_missing=is_missing)
    most = _most_guarded(candidates, state, settings)
    if guard:
        candidates["guard"] = min(view.working + max(1.0, 0.1 * view.counted), most)
    binding = max(candidates, key=lambda name: candidates[name], default="")
    wanted = kept = snapshot.specified
    if candidates:
        wanted = _whole(candidates[binding]) + settings.spare_replicas
        kept = _whole(candidates[binding] * (1.0 + FALL_MARGIN)) + settings.spare_replicas
    state = _remember_want(view, kept, state, settings)
    # A clock that jumped says nothing of the time of day.
    scheduled = None if has_jumped else scheduled_minimum(settings.schedule, snapshot.time_s, demand.lead_time_s)
    if scheduled is None and _may_sleep(view, state, settings):
        wanted, outcome = 0, pause(snapshot.specified, Outcome(0, Reason.IDLE, None), settings)
    else:
        damped = damp(view, wanted, state, settings, has_asked=bool(candidates))
        outcome = bound(snapshot.specified, *damped, binding, settings, scheduled=scheduled)
    decision = Decision(
        desired=outcome.desired,
        current=snapshot.specified,
        reason=outcome.reason,
        limited_by=outcome.limited_by,
        unlimited=wanted,
        candidates=candidates,
        forecast_per_s=demand.forecast,
        service_rate_per_s=view.rate,
        speed_source=speed_source(state, settings),
        lead_time_s=demand.lead_time_s,
        conditions=_conditions(view, state, settings, most_guarded=most),
        notes=_notes(view, settings),
    )
    return decision, _remember(decision, view, state, guarded=guard and binding == "guard")


def _whole(replicas: float) -> int:
    return max(1, math.ceil(replicas - ROUNDING))


def _hold(view: View, state: State, settings: Settings, mistake: str) -> Decision:
    """Return the decision that changes nothing, because the user's limits contradict one another."""
    current = view.snapshot.specified
    return Decision(
        desired=current,
        current=current,
        reason=Reason.STEADY,
        limited_by="impossibleSettings",
        unlimited=current,
        forecast_per_s=view.demand.forecast,
        service_rate_per_s=view.rate,
        speed_source=speed_source(state, settings),
        lead_time_s=view.demand.lead_time_s,
        conditions=("ImpossibleSettings", *_conditions(view, state, settings)),
        notes=(mistake, *_notes(view, settings)),
    )


# ---- objectives that are missed ----


def _is_late(view: View, settings: Settings) -> bool:
    return view.demand.missed_share > settings.late_share and view.unreachable is None


def _is_missing(view: View, state: State, settings: Settings) -> bool:
    """Tell whether objectives are missed although nothing is on its way, nor came within a lead time."""
    last_s = max(state.scaled_up_s, state.guarded_s)
    if view.counted > view.ready or view.snapshot.time_s - last_s <= view.demand.lead_time_s:
        return False
    return _is_late(view, settings) or view.demand.preemptions > 2


def _is_patience_over(view: View, state: State) -> bool:
    """Tell whether the guard may try one more replica: after each that has not helped it waits twice as long."""
    return view.snapshot.time_s - state.guarded_s > view.demand.lead_time_s * 2.0**state.guards_in_vain


def _most_guarded(candidates: Mapping[str, float], state: State, settings: Settings) -> float:
    """Return the most that the guard may ask for: `most_corrector` times what the plan does, or one above the demand.

    Some requests, such as one with a very long prompt, are late with any number of replicas. The demand holds the
    corrector already, so that corrector and guard share one bound; where no speed is known there is none.
    """
    demand = candidates.get("demand")
    if demand is None:
        return math.inf
    return max(demand + 1.0, demand * settings.most_corrector / state.corrector)


def _correct(view: View, state: State, settings: Settings, *, is_missing: bool) -> State:
    """Trust the service rate less while objectives are missed below the planned load, and more again, slowly."""
    factor = CORRECTOR_DOWN
    if is_missing and view.rate is not None and view.ready:
        load = view.demand.rate_short / (view.rate * view.ready)
        if load < settings.load_share:
            factor = CORRECTOR_UP
    corrector = min(max(state.corrector * factor, settings.least_corrector), settings.most_corrector)
    return state.changed(corrector=corrector)


# ---- zero ----


def _notice_requests(view: View, state: State, settings: Settings) -> State:
    """Remember when there was a request; a replica that says nothing may have one."""
    now_s, snapshot = view.snapshot.time_s, view.snapshot
    is_idle = (
        view.demand.arrived == 0
        and not view.has_clock_jumped
        and snapshot.held_requests == 0
        and not snapshot.pending
        and len(snapshot.ready) == len(snapshot.replicas)
        and len(snapshot.fresh(settings.stale_after_s)) == len(snapshot.ready)
        and all(replica.reading is not None and replica.reading.in_flight == 0 for replica in snapshot.ready)
    )
    return state if is_idle and state.asked_s is not None else state.changed(asked_s=now_s)


def _may_sleep(view: View, state: State, settings: Settings) -> bool:
    """Tell whether the service has been idle, by reports of all its replicas, for the time that the user wrote."""
    if settings.idle_to_zero_s is None or view.snapshot.held_requests:
        return False
    if view.snapshot.specified == 0:
        return True
    return state.asked_s is not None and view.snapshot.time_s - state.asked_s >= settings.idle_to_zero_s


# ---- what is told and remembered ----


def _conditions(view: View, state: State, settings: Settings, *, most_guarded: float = math.inf) -> tuple[str, ...]:
    holds = {
        "StuckPending": view.stuck > 0,
        "SignalMissing": view.ready > 0 and not view.is_fresh,
        "UnusableReport": bool(view.garbage),
        "ClockJump": view.has_clock_jumped,
        "Imbalanced": state.imbalanced_ticks >= IMBALANCED_TICKS,
        "Flapping": is_flapping(view, state),
        "SloUnreachable": view.unreachable is not None,
        "SloMissed": _is_late(view, settings) and view.working >= most_guarded - ROUNDING,
        "ScheduleIgnored": bool(schedule_mistakes(settings.schedule)),
    }
    return tuple(name for name, is_so in holds.items() if is_so)


def _notes(view: View, settings: Settings) -> tuple[str, ...]:
    notes = [] if view.unreachable is None else [view.unreachable]
    if view.garbage:
        notes.append(f"reports that no engine can have made: {', '.join(view.garbage)}")
    return (*notes, *schedule_mistakes(settings.schedule))


def _remember_want(view: View, kept: int, state: State, settings: Settings) -> State:
    now_s = view.snapshot.time_s
    seed = () if state.wants else (Want(now_s, view.snapshot.specified),)  # what was before is taken for wanted
    since_s = now_s - down_window_s(view.demand, settings)
    return state.changed(wants=(*seed, *(want for want in state.wants if want.time_s > since_s), Want(now_s, kept)))


def _imbalance(replicas: tuple[Replica, ...]) -> float:
    loads = [replica.reading.in_flight for replica in replicas if replica.reading is not None]
    total = sum(loads)
    return max(loads) * len(loads) / total if len(loads) > 1 and total else 1.0


def _remember(decision: Decision, view: View, state: State, *, guarded: bool) -> State:
    now_s, ready = view.snapshot.time_s, view.snapshot.ready
    ticks = state.imbalanced_ticks + 1 if _imbalance(ready) > IMBALANCE else 0
    state = state.changed(imbalanced_ticks=ticks)
    if decision.desired == decision.current:
        return state
    is_up = decision.desired > decision.current
    if state.was_up is not None and state.was_up != is_up:
        state = state.changed(reversals_s=(*state.reversals_s, now_s)[-10:])
    state = state.changed(
        was_up=is_up,
        scaled_up_s=now_s if is_up else state.scaled_up_s,
        scaled_down_s=state.scaled_down_s if is_up else now_s,
    )
    return _remember_guard(view, state) if guarded else state


def _remember_guard(view: View, state: State) -> State:
    share = view.demand.missed_share_long
    in_vain = state.guarded_share > 0 and share > HELPED * state.guarded_share
    return state.changed(
        guarded_s=view.snapshot.time_s,
        guarded_share=share,
        guards_in_vain=min(state.guards_in_vain + 1, MOST_IN_VAIN) if in_vain else 0,
    )
