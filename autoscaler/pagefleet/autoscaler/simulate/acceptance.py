"""What our policy must reach on the six cases, against the field, against the future, and with a wrong plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pagefleet.autoscaler.simulate.cases import (
    OURS,
    Candidate,
    Case,
    baseline_candidates,
    clairvoyant_candidates,
    our_candidate,
    readiness_candidates,
    static_candidates,
)
from pagefleet.autoscaler.simulate.frontier import TUNED_FAMILIES, Point, best_tuned, is_ours

SPEED_ERROR = 0.15
CLAIRVOYANT_POINTS, CLAIRVOYANT_HOURS = 0.01, 1.15
CALM_CASES = ("conv x 6", "day 3")
SURGE_CASE, SURGE_ATTAINMENT = "day 9", 0.95
ERROR_POINTS, ERROR_HOURS = 0.02, 1.25
LEAST_DOMINATED_CASES = 4


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One requirement on one case, with what was found."""

    case: str
    requirement: str
    found: str
    is_met: bool


def acceptance_candidates(case: Case) -> list[Candidate]:
    """Return all that the suite runs on a case, ours first."""
    return [
        our_candidate(case),
        our_candidate(case, speed_error=SPEED_ERROR),
        our_candidate(case, speed_error=-SPEED_ERROR),
        *readiness_candidates(case),
        *clairvoyant_candidates(case),
        *static_candidates(),
        *baseline_candidates(case),
    ]


def quick_candidates(case: Case) -> list[Candidate]:
    """Return ours with a right and a wrong plan, and those that know the future: what changes of our policy change."""
    return [
        our_candidate(case),
        our_candidate(case, speed_error=SPEED_ERROR),
        our_candidate(case, speed_error=-SPEED_ERROR),
        *readiness_candidates(case),
        *clairvoyant_candidates(case),
    ]


def judge(points: Mapping[str, Sequence[Point]], *, lead_time_s: float) -> list[Verdict]:
    """Judge the points of each case by what our policy must reach."""
    verdicts = []
    for case, of_case in points.items():
        verdicts += _judge_case(case, of_case, lead_time_s=lead_time_s)
    dominated = [case for case, of_case in points.items() if _dominates_tuned(of_case)]
    if any(point.family in TUNED_FAMILIES for of_case in points.values() for point in of_case):
        verdicts.append(
            Verdict(
                case="all",
                requirement=f"dominates the best-tuned {' and '.join(TUNED_FAMILIES)} on {LEAST_DOMINATED_CASES} cases",
                found=", ".join(dominated) or "on none",
                is_met=len(dominated) >= LEAST_DOMINATED_CASES,
            )
        )
    return verdicts


def _judge_case(case: str, points: Sequence[Point], *, lead_time_s: float) -> list[Verdict]:
    ours = next(point for point in points if point.name == OURS)
    field = [point for point in points if not is_ours(point.family) and point.family not in ("clairvoyant", "static")]
    verdicts = [_flaps_little(case, ours, lead_time_s)]
    if field:
        better = [point for point in field if point.dominates(ours)]
        verdicts.append(
            Verdict(
                case=case,
                requirement="no target of the field serves more in time for fewer hours",
                found=", ".join(describe(point) for point in better) or f"none of {len(field)} points",
                is_met=not better,
            )
        )
    verdicts += [_bears_error(case, ours, point) for point in points if point.family == OURS and point is not ours]
    future = best_tuned([point for point in points if point.family == "clairvoyant"])
    if case in CALM_CASES:
        verdicts.append(
            Verdict(
                case=case,
                requirement="within 1 point and 1.15 x the hours of the one that knows the future",
                found=f"{describe(ours)}; {describe(future)}",
                is_met=ours.outcome.attainment >= future.outcome.attainment - CLAIRVOYANT_POINTS
                and ours.outcome.replica_hours <= CLAIRVOYANT_HOURS * future.outcome.replica_hours,
            )
        )
    if case == SURGE_CASE:
        verdicts.append(
            Verdict(
                case=case,
                requirement="95 % at 1.15 x the hours of the one that knows the future",
                found=f"{describe(ours)}; {describe(future)}",
                is_met=ours.outcome.attainment >= SURGE_ATTAINMENT
                and ours.outcome.replica_hours <= CLAIRVOYANT_HOURS * future.outcome.replica_hours,
            )
        )
    return verdicts


def _flaps_little(case: str, ours: Point, lead_time_s: float) -> Verdict:
    times_s = ours.outcome.reversals_s
    most = max(
        (sum(begin_s <= time_s < begin_s + 2 * lead_time_s for time_s in times_s) for begin_s in times_s), default=0
    )
    return Verdict(
        case=case,
        requirement="at most 1 change of direction in 2 lead times",
        found=f"{len(times_s)} in all, at most {most} in {2 * lead_time_s:.0f} s",
        is_met=most <= 1,
    )


def _bears_error(case: str, ours: Point, wrong: Point) -> Verdict:
    return Verdict(
        case=case,
        requirement=f"with a {wrong.setting} plan within 2 points and 1.25 x the hours",
        found=describe(wrong),
        is_met=wrong.outcome.attainment >= ours.outcome.attainment - ERROR_POINTS
        and wrong.outcome.replica_hours <= ERROR_HOURS * ours.outcome.replica_hours,
    )


def _dominates_tuned(points: Sequence[Point]) -> bool:
    ours = next(point for point in points if point.name == OURS)
    families = [[point for point in points if point.family == family] for family in TUNED_FAMILIES]
    return all(family and ours.dominates(best_tuned(family)) for family in families)


def describe(point: Point) -> str:
    """Return a point in a few words."""
    least, most = ("", "") if point.outcome.stopped_s is None else ("more than ", "less than ")
    share = f"{most}{100 * point.outcome.attainment:.1f} %"
    return f"{point.name} {share} at {least}{point.outcome.replica_hours:.1f} h"
