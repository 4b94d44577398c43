"""How many replicas each term asks for: the forecast demand, a backlog, and the user's own limits. Pure."""

from dataclasses import dataclass

from pagefleet.autoscaler.observe import Demand
from pagefleet.autoscaler.settings import Settings
from pagefleet.autoscaler.snapshot import Snapshot
from pagefleet.autoscaler.speed import service_rate, unreachable
from pagefleet.autoscaler.state import State

STUCK_LEAD_TIMES = 2.0
"""A replica that is pending for longer than so many lead times is no longer counted on."""


@dataclass(frozen=True, kw_only=True)
class View:
    """What the terms of one decision share."""

    snapshot: Snapshot
    demand: Demand
    ready: int
    counted: int
    """Ready replicas, and pending ones that can be counted on."""
    spare: int
    """Replicas that the user wants beyond what the load asks for."""
    stuck: int
    is_fresh: bool
    rate: float | None
    """Requests per second of one replica within the objectives; None is not known."""
    unreachable: str | None
    """The objective that even one request alone misses."""
    garbage: tuple[str, ...]
    """Replicas whose report no engine can have made."""
    has_clock_jumped: bool

    @property
    def working(self) -> int:
        """Return the replicas that are counted on without the spare ones."""
        return max(0, self.counted - self.spare)


def look(
    snapshot: Snapshot,
    demand: Demand,
    state: State,
    settings: Settings,
    *,
    garbage: tuple[str, ...] = (),
    has_clock_jumped: bool = False,
) -> View:
    """Return what all terms of this decision share."""
    stuck = sum(
        snapshot.time_s - state.pending_since_s.get(replica.name, snapshot.time_s)
        > STUCK_LEAD_TIMES * demand.lead_time_s
        for replica in snapshot.pending
    )
    ready = len(snapshot.ready)
    fresh = len(snapshot.fresh(settings.stale_after_s))
    return View(
        snapshot=snapshot,
        demand=demand,
        ready=ready,
        counted=ready + len(snapshot.pending) - stuck,
        spare=settings.spare_replicas,
        stuck=stuck,
        is_fresh=ready > 0 and fresh >= settings.least_fresh_share * ready,
        rate=service_rate(state, settings),
        unreachable=unreachable(state, settings),
        garbage=garbage,
        has_clock_jumped=has_clock_jumped,
    )


def ask(view: View, settings: Settings) -> dict[str, float]:
    """Return the replicas that each term asks for, without the spare ones."""
    demand, candidates = view.demand, _targets(view, settings)
    if view.rate is None:
        return candidates
    candidates["demand"] = demand.forecast / (view.rate * settings.load_share)
    served = view.rate * view.ready
    ttft_s = settings.ttft_slo_s or 0.0
    backlog = demand.queued + 0.5 * demand.lead_time_s * max(0.0, demand.rate_short - served)
    excess = max(0.0, backlog - 0.5 * ttft_s * served)
    if excess:
        candidates["backlog"] = _to_work_off(excess, view, settings)
    return candidates


def _targets(view: View, settings: Settings) -> dict[str, float]:
    """Return what the user's own limits ask for; both are always honoured."""
    fresh = view.snapshot.fresh_readings(settings.stale_after_s)
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


def _to_work_off(requests: float, view: View, settings: Settings) -> float:
    """Return the replicas that serve the present rate and work off a backlog in time.

    A backlog is no rate: replicas in proportion to it would be far too many once they serve.
    """
    if view.rate is None:
        return view.working + 1.0 if view.counted == view.ready else float(view.working)
    present = view.demand.rate_short / (view.rate * settings.load_share)
    return present + requests / (view.rate * settings.drain_backlog_s)
