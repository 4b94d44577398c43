"""What people can add to our policy, so that a surge finds replicas ready: hints, spare replicas, a quicker start."""

from dataclasses import dataclass

from pagefleet.autoscaler.schedule import DAY_S, WEEK, ScheduledTime
from pagefleet.autoscaler.simulate.fleet import Conditions

FIRST_DAY = 3
"""Simulated time begins with the seconds since 1970, on a Thursday."""


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """Each is tried alone, beside our policy with none of them."""

    hints: tuple[ScheduledTime, ...] = ()
    spare_replicas: int = 0
    start_s: float | None = None
    """Most seconds of a start; None leaves the case's."""


def make_hint(begin_s: float, end_s: float, replicas: int) -> ScheduledTime:
    """Return the time of the schedule that is one span of simulated seconds."""
    day, from_s = divmod(begin_s, DAY_S)
    return ScheduledTime(
        days=(WEEK[(FIRST_DAY + int(day)) % len(WEEK)],),
        from_s=from_s,
        to_s=from_s + end_s - begin_s,
        time_zone="UTC",
        min_replicas=replicas,
    )


def quick_start_s(conditions: Conditions, most_s: float) -> tuple[float, float]:
    """Return least and most seconds of a start that varies by as much as the given one."""
    least, most = conditions.cold_start_s
    return least / most * most_s, most_s
