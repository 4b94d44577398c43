"""Compare outcomes on two axes: requests served in time, and hours of replicas."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from pagefleet.autoscaler.simulate.cases import Candidate, Case
from pagefleet.autoscaler.simulate.fleet import simulate
from pagefleet.autoscaler.simulate.outcome import Outcome

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


def frontier(points: Iterable[Point]) -> list[Point]:
    """Return the points that no other dominates, the cheapest first."""
    points = list(points)
    kept = [point for point in points if not any(other.dominates(point) for other in points)]
    return sorted(kept, key=lambda point: point.outcome.replica_hours)


def best_tuned(points: Sequence[Point]) -> Point:
    """Return the cheapest point that serves 99 % in time, or else the one that serves most."""
    good = [point for point in points if point.outcome.attainment >= GOOD_ATTAINMENT]
    if good:
        return min(good, key=lambda point: point.outcome.replica_hours)
    return max(points, key=lambda point: (point.outcome.attainment, -point.outcome.replica_hours))


def run_candidate(case: Case, candidate: Candidate) -> Point:
    """Run one candidate on one case. A fixed number exists from the start."""
    conditions = case.conditions
    if candidate.family == "static":
        conditions = replace(conditions, initial_replicas=int(candidate.setting))
    outcome = simulate(case.workload, conditions, candidate.make())
    return Point(family=candidate.family, setting=candidate.setting, outcome=outcome)


def run_candidates(
    case: Case, select: Callable[[Case], Sequence[Candidate]], *, jobs: int, on_point: Callable[[Point], None]
) -> list[Point]:
    """Run all that `select` returns for the case, in `jobs` processes, and return the points in its order.

    `select` must be a function of a module: candidates hold functions that cannot be sent to another process, so each
    process makes its own.
    """
    count = len(select(case))
    points = []
    if jobs == 1:
        for index in range(count):
            points.append(_run_numbered(case, select, index))
            on_point(points[-1])
        return points
    with ProcessPoolExecutor(jobs) as pool:
        for point in pool.map(partial(_run_numbered, case, select), range(count)):
            points.append(point)
            on_point(point)
    return points


def _run_numbered(case: Case, select: Callable[[Case], Sequence[Candidate]], index: int) -> Point:
    return run_candidate(case, select(case)[index])
