"""Say what was decided and why: the status, its sentences and the events. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from pagefleet.api.v1alpha1 import DECISIONS_KEPT, AutoscalingStatus, ScalingDecision, ScalingSignals
from pagefleet.autoscaler.decision import Decision, Reason
from pagefleet.autoscaler.observe import SHORT_S, missed_share
from pagefleet.autoscaler.schedule import binding_time
from pagefleet.autoscaler.settings import Settings
from pagefleet.autoscaler.snapshot import Reading, Snapshot
from pagefleet.autoscaler.state import State

CONDITION_SENTENCES = {
    "StuckPending": "a replica does not become ready in twice the time that others took; another one takes its place",
    "SignalMissing": "too many replicas give no report, so none is taken away",
    "Imbalanced": "one replica has far more requests than the others, which more replicas do not mend",
    "Flapping": "the number went up and down within two lead times, so it may not fall yet",
    "SloUnreachable": "not even one request alone is served within the objectives; raise slo.itl, or use a faster "
    "accelerator",
    "SloMissed": "objectives are missed with as many replicas as measurements can justify against the plan, so no more "
    "are added; look for very long prompts or bursts, or raise slo.ttft",
    "UnusableReport": "a replica reports what no engine can have done; its numbers are left out",
    "ClockJump": "the clock jumped, so nothing is scaled until reports are in order again",
    "ScheduleIgnored": "a time of the schedule is in a time zone that is not known, so it is left out",
    "ImpossibleSettings": "the limits contradict one another, so nothing is scaled",
}


@dataclass(frozen=True, kw_only=True)
class Told:
    """One event to tell."""

    reason: str
    message: str
    is_warning: bool = False


def tell_decision(decision: Decision, snapshot: Snapshot, state: State, settings: Settings) -> str:
    """Return a sentence with the numbers that decided."""
    if decision.desired == decision.current:
        change = _count("replica", decision.current)
    else:
        change = f"{decision.current} to {decision.desired} replicas"
    told = f"{change}: {_why(decision, snapshot, state, settings)}"
    if settings.spare_replicas:
        told = f"{told}; {settings.spare_replicas} to spare"
    if decision.limited_by is not None:
        told = f"{told}; {_limit(decision, snapshot, settings)}"
    return "; ".join((told, *decision.notes))


def make_status(
    *,
    mode: str,
    decision: Decision | None,
    snapshot: Snapshot,
    state: State,
    settings: Settings,
    last_decisions: tuple[ScalingDecision, ...],
    conflict: str | None = None,
    fault: str | None = None,
) -> AutoscalingStatus:
    """Return what `status.autoscaling` should be; numbers are rounded, so that it changes when something does."""
    signals = make_signals(snapshot, state, settings)
    if decision is None:
        return AutoscalingStatus(mode=mode, message=fault, signals=signals, last_decisions=last_decisions)
    conditions = (*decision.conditions, *(("Conflict",) if conflict else ()))
    return AutoscalingStatus(
        mode=mode,
        desired=decision.desired,
        reason=str(decision.reason),
        limited_by=decision.limited_by,
        message=conflict or fault or tell_decision(decision, snapshot, state, settings),
        counterfactual=decision.counterfactual,
        forecast_requests_per_second=_rounded(decision.forecast_per_s),
        replica_requests_per_second=_rounded(decision.service_rate_per_s),
        lead_time_seconds=_rounded(decision.lead_time_s),
        conditions=conditions,
        signals=signals,
        last_decisions=last_decisions,
    )


def make_signals(snapshot: Snapshot, state: State, settings: Settings) -> ScalingSignals:
    """Return what was seen. Unknown is absent, never 0."""
    fresh, known = snapshot.fresh_readings(settings.stale_after_s), snapshot.ready_readings
    blocks = sum(reading.blocks_total for reading in fresh)
    occupancy = sum(reading.blocks_active for reading in fresh) / blocks if blocks else None
    missed = missed_share(state.totals, SHORT_S, settings.least_samples)
    return ScalingSignals(
        reporting_replicas=len(fresh),
        silent_replicas=len(snapshot.ready) - len(fresh),
        age_seconds=round(max(snapshot.time_s - reading.read_s for reading in known), 1) if known else None,
        requests_per_second=_rounded(state.rates[-1].short) if len(state.totals) > 1 else None,
        kv_occupancy=None if occupancy is None else round(occupancy, 2),
        kv_percent=None if occupancy is None else round(100 * occupancy),
        running=_sum(fresh, "running"),
        queue_depth=_sum(fresh, "queue_depth"),
        queued_tokens=_sum(fresh, "tokens_queued"),
        queue_age_seconds=round(max(reading.queue_age_s for reading in fresh), 1) if fresh else None,
        missed_percent=None if missed is None else round(100 * missed, 1),
    )


def remember_decision(
    before: tuple[ScalingDecision, ...], decision: Decision, snapshot: Snapshot, message: str
) -> tuple[ScalingDecision, ...]:
    """Return the latest changes with one more, the newest first."""
    entry = ScalingDecision(
        time=datetime.fromtimestamp(snapshot.time_s, UTC),
        from_replicas=decision.current,
        to_replicas=decision.desired,
        reason=str(decision.reason),
        limited_by=decision.limited_by,
        message=message,
    )
    return (entry, *before)[:DECISIONS_KEPT]


def is_worth_writing(before: AutoscalingStatus | None, now: AutoscalingStatus) -> bool:
    """Tell whether anything changed but the age of what was read."""
    return before is None or _without_ages(before) != _without_ages(now)


def is_urgent(before: AutoscalingStatus | None, mode: str, decision: Decision | None) -> bool:
    """Tell whether the decision or the mode changed, which is written at once."""
    desired = None if decision is None else decision.desired
    return before is None or (before.mode, before.desired) != (mode, desired)


def tell_conditions(before: Iterable[str], now: Iterable[str]) -> list[Told]:
    """Return an event for each condition that has come to hold."""
    known = set(before)
    return [
        Told(reason=name, message=CONDITION_SENTENCES[name], is_warning=True)
        for name in now
        if name not in known and name in CONDITION_SENTENCES
    ]


def _without_ages(status: AutoscalingStatus) -> AutoscalingStatus:
    if status.signals is None:
        return status
    signals = status.signals.model_copy(update={"age_seconds": None, "queue_age_seconds": None})
    return status.model_copy(update={"signals": signals})


# ---- sentences ----


def _why(decision: Decision, snapshot: Snapshot, state: State, settings: Settings) -> str:
    signals = make_signals(snapshot, state, settings)
    match decision.reason:
        case Reason.BACKLOG:
            per_s = signals.requests_per_second
            coming = "" if per_s is None else f" and {_number(per_s)} requests/s come"
            return (
                f"{_count('request', signals.queue_depth)} wait{coming}, to be worked off in "
                f"{settings.drain_backlog_s:g} s"
            )
        case Reason.KV_OCCUPANCY:
            return (
                f"live sequences hold {signals.kv_percent or 0} % of the KV cache, "
                f"targets.kvOccupancy is {settings.kv_occupancy_target:g}"
            )
        case Reason.QUEUE_DEPTH:
            return (
                f"{_count('request', signals.queue_depth)} wait in {_count('replica', signals.reporting_replicas)}, "
                f"targets.queueDepth is {settings.queue_depth_target}"
            )
        case Reason.GUARD:
            missed = "sequences lose their blocks" if not signals.missed_percent else f"{signals.missed_percent} % miss"
            return f"{missed}{' their objective' if signals.missed_percent else ''} although the load is within bounds"
        case Reason.BOUNDS:
            return f"minReplicas is {settings.min_replicas}, maxReplicas {settings.max_replicas}"
        case Reason.IDLE:
            return f"no request for {settings.idle_to_zero_s or 0:g} s"
        case Reason.WAKE_UP:
            return "there was none"
    return _load(decision)


def _load(decision: Decision) -> str:
    if decision.forecast_per_s is None:
        return "nothing is known of the load"
    ahead = "" if decision.lead_time_s is None else f" in {decision.lead_time_s:.0f} s"
    told = f"{_number(decision.forecast_per_s)} requests/s to be ready for{ahead}"
    if decision.service_rate_per_s is None:
        return f"{told}; how fast a replica is is not known yet, so targets and objectives decide"
    return f"{told}, of which one replica serves {_number(decision.service_rate_per_s)}"


def _limit(decision: Decision, snapshot: Snapshot, settings: Settings) -> str:
    if decision.limited_by == "schedule":
        entry = binding_time(settings.schedule, snapshot.time_s, decision.lead_time_s or 0.0)
        return (
            "the schedule asks for it"
            if entry is None
            else f"the schedule asks for {entry.min_replicas} from {entry.begin}"
        )
    sentences = {
        "maxReplicas": f"maxReplicas is {settings.max_replicas}",
        "minReplicas": f"minReplicas is {settings.min_replicas}",
        "accelerators": "no node has room for one more",
        "upStep": "no more are added at once",
        "downWindow": "more was wanted in the last minutes",
        "fallMargin": "the load is within a tenth of what fewer carry",
        "downInterval": f"one step down in {settings.down_interval_s:g} s",
        "consolidation": "fewer could not hold the load",
        "signalMissing": "too many replicas give no report",
        "pendingReplicas": "replicas are on their way",
        "flapBudget": "it went up not long ago",
        "pausedScaleUp": "pauseScaleUp is set",
        "pausedScaleDown": "pauseScaleDown is set",
        "clockJump": "the clock jumped",
        "rollout": "a new revision takes over",
        "apiServer": "the API server does not answer",
    }
    return sentences.get(decision.limited_by or "", f"held back by {decision.limited_by}")


def _sum(readings: list[Reading], name: str) -> int | None:
    return sum(getattr(reading, name) for reading in readings) if readings else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.2g}")


def _number(value: float) -> str:
    rounded = float(f"{value:.2g}")
    return f"{rounded:.0f}" if rounded >= 10 else f"{rounded:g}"


def _count(word: str, count: int | None) -> str:
    return f"{count or 0} {word if count == 1 else f'{word}s'}"
