"""Tell reports that can be counted on from garbage, and follow clocks that jump. Pure."""

import math
from dataclasses import fields, replace

from pagefleet.autoscaler.snapshot import Reading, Replica, Snapshot
from pagefleet.autoscaler.state import Rates, State, StepsSeen, Totals, Want

MOST_COUNT = 2.0**53
"""Counters beyond what a double holds exactly are no counters."""
MOST_REQUESTS_PER_S = 1000.0
"""More than one server process takes."""
RACE = 100
"""Requests by which two counters of one report may disagree, since nothing is locked while it is made."""
MOST_AHEAD_S = 1.0
"""A report from further in the future was read by another clock."""
MOST_GAP_S = 60.0
"""Between two decisions. After a longer one the clock has jumped, or nobody decided: rates over it mean nothing."""

_COUNTS = tuple(field.name for field in fields(Reading) if field.name != "read_s")


def trusted(snapshot: Snapshot, state: State) -> tuple[Snapshot, tuple[str, ...]]:
    """Return the snapshot with the last good report in place of each that no engine can have made, and their names."""
    bad = tuple(
        replica.name
        for replica in snapshot.replicas
        if replica.reading is not None and not _is_plausible(replica, replica.reading, snapshot, state)
    )
    if not bad:
        return snapshot, ()
    replicas = tuple(
        replace(replica, reading=_last_good(state.readings.get(replica.name), snapshot))
        if replica.name in bad
        else replica
        for replica in snapshot.replicas
    )
    return replace(snapshot, replicas=replicas), bad


def _last_good(reading: Reading | None, snapshot: Snapshot) -> Reading | None:
    return None if reading is None or reading.read_s > snapshot.time_s + MOST_AHEAD_S else reading


def _is_plausible(replica: Replica, now: Reading, snapshot: Snapshot, state: State) -> bool:
    values = [getattr(now, name) for name in _COUNTS]
    if not all(math.isfinite(value) for value in (now.read_s, *values)):
        return False
    if min(values) < 0 or max(values) > MOST_COUNT or now.blocks_active > now.blocks_total:
        return False
    if now.read_s > snapshot.time_s + MOST_AHEAD_S or now.finished_total > now.arrivals_total + RACE:
        return False
    before = state.readings.get(replica.name)
    if before is None:
        passed_s, requests = now.read_s - replica.created_s, now.arrivals_total
    elif now.arrivals_total < before.arrivals_total:  # it began again
        return True
    else:
        passed_s, requests = now.read_s - before.read_s, now.arrivals_total - before.arrivals_total
    return passed_s <= 0 or requests <= MOST_REQUESTS_PER_S * max(1.0, passed_s)


def follow_clock(state: State, now_s: float) -> tuple[State, bool]:
    """Move all remembered times with a clock that jumped, so that windows go on as if it had not; and tell of it."""
    if not state.totals:
        return state, False
    last_s = state.totals[-1].time_s
    if 0 <= now_s - last_s <= MOST_GAP_S:
        return state, False
    usual_s = last_s - state.totals[-2].time_s if len(state.totals) > 1 else 0.0
    return _moved(state, now_s - last_s - max(usual_s, 1.0)), True


def _moved(state: State, by_s: float) -> State:
    return state.changed(
        began_s=None if state.began_s is None else state.began_s + by_s,
        totals=tuple(Totals(entry.time_s + by_s, *entry[1:]) for entry in state.totals),
        rates=tuple(Rates(entry.time_s + by_s, *entry[1:]) for entry in state.rates),
        growths=tuple((time_s + by_s, growth) for time_s, growth in state.growths),
        wants=tuple(Want(want.time_s + by_s, want.replicas) for want in state.wants),
        steps_seen=tuple(StepsSeen(steps.time_s + by_s, *steps[1:]) for steps in state.steps_seen),
        learned_s=state.learned_s + by_s,
        pending_since_s={name: time_s + by_s for name, time_s in state.pending_since_s.items()},
        asked_s=None if state.asked_s is None else state.asked_s + by_s,
        scaled_up_s=state.scaled_up_s + by_s,
        scaled_down_s=state.scaled_down_s + by_s,
        guarded_s=state.guarded_s + by_s,
        reversals_s=tuple(time_s + by_s for time_s in state.reversals_s),
    )
