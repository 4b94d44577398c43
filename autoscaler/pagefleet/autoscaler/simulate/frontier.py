"""Compare outcomes on two axes: requests served in time, and hours of replicas."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from pagefleet.autoscaler.simulate.cases import OURS, Candidate, Case
from pagefleet.autoscaler.simulate.fleet import NO_LIMITS, Limits, simulate
from pagefleet.autoscaler.simulate.outcome import Outcome
from pagefleet.autoscaler.simulate.router import ROUTERS

TUNED_FAMILIES = ("HPA in-flight", "WVA V2")
MOST_HOURS = 2.0
WORST_ATTAINMENT = 0.85
GOOD_ATTAINMENT = 0.99
"""Attainment from which on a target counts as well tuned, and its cost decides."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One policy with one target on one case."""

    family: str
    setting: str
    outcome: Outcome

    @property
    def name(self) -> str:
        """Return family and setting."""
        return f"{self.family} {self.setting}".strip()

    def dominates(self, other: "Point") -> bool:
        """Tell whether it serves no fewer in time for no more hours, and is better on one axis."""
        mine = (self.outcome.attainment, -self.outcome.replica_hours)
        theirs = (other.outcome.attainment, -other.outcome.replica_hours)
        return all(one >= two for one, two in zip(mine, theirs, strict=True)) and mine != theirs

    @property
    def figures(self) -> str:
        """Return % in time @ replica hours, as bounds where the run ended early."""
        share, hours = 100 * self.outcome.attainment, self.outcome.replica_hours
        return f"{share:.1f} @ {hours:.1f}" if self.outcome.stopped_s is None else f"<{share:.1f} @ >{hours:.1f}"


def is_ours(family: str) -> bool:
    """Tell whether a family is our policy, alone or with something that lets surges find replicas ready."""
    return family.partition(" + ")[0] == OURS


def frontier(points: Iterable[Point]) -> list[Point]:
    """Return the points that no other dominates, the cheapest first."""
    points = list(points)
    kept = [point for point in points if not any(other.dominates(point) for other in points)]
    return sorted(kept, key=lambda point: point.outcome.replica_hours)


def best_tuned(points: Sequence[Point]) -> Point:
    """Return the cheapest whole run that serves 99 % in time, or else the one that serves most."""
    points = [point for point in points if point.outcome.stopped_s is None] or points
    good = [point for point in points if point.outcome.attainment >= GOOD_ATTAINMENT]
    if good:
        return min(good, key=lambda point: point.outcome.replica_hours)
    return max(points, key=lambda point: (point.outcome.attainment, -point.outcome.replica_hours))


def limits_beside(case: Case, ours: Outcome, family: str) -> Limits:
    """Return where a run can end: far more hours or far more missed than ours, which nothing makes good.

    What must be beaten at its best-tuned target plays on at any cost.
    """
    if is_ours(family) or family == "clairvoyant" or family in TUNED_FAMILIES:
        return NO_LIMITS
    return Limits(
        most_replica_hours=MOST_HOURS * ours.replica_hours,
        most_missed=len(case.workload.arrivals) - WORST_ATTAINMENT * ours.in_time,
    )


def run_candidate(case: Case, candidate: Candidate, ours: Outcome | None = None) -> Point:
    """Run one candidate on one case. A fixed number exists from the start; `ours` is what a lost run may end by."""
    conditions = case.conditions
    if candidate.family == "static":
        conditions = replace(conditions, initial_replicas=int(candidate.setting))
    if candidate.cold_start_s is not None:
        conditions = replace(conditions, cold_start_s=candidate.cold_start_s)
    limits = NO_LIMITS if ours is None else limits_beside(case, ours, candidate.family)
    router = ROUTERS[case.router]()
    outcome = simulate(case.workload, conditions, candidate.make(), router=router, limits=limits)
    return Point(family=candidate.family, setting=candidate.setting, outcome=outcome)


def run_candidates(
    case: Case,
    select: Callable[[Case], Sequence[Candidate]],
    *,
    jobs: int,
    on_point: Callable[[Point], None],
    first: Candidate | None = None,
) -> list[Point]:
    """Run all that `select` returns for the case, in `jobs` processes, and return the points in its order.

    `select` must be a function of a module: candidates hold functions that cannot be sent to another process, so each
    process makes its own. The first is ours, and others end early where they have lost against it;
    `first` replaces it, so that it can write a log.
    """
    points = [run_candidate(case, first or select(case)[0])]
    on_point(points[0])
    run, others = partial(_run_numbered, case, select, points[0].outcome), range(1, len(select(case)))
    if jobs == 1:
        for point in map(run, others):
            points.append(point)
            on_point(point)
        return points
    with ProcessPoolExecutor(jobs) as pool:
        for point in pool.map(run, others):
            points.append(point)
            on_point(point)
    return points


def _run_numbered(case: Case, select: Callable[[Case], Sequence[Candidate]], ours: Outcome, index: int) -> Point:
    return run_candidate(case, select(case)[index], ours)
