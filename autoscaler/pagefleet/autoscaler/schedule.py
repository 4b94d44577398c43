"""The fewest replicas that the user's schedule asks for, a lead time ahead. Pure: the time is an argument."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from pagefleet.api.v1alpha1.autoscaling_schedule import Day, ScheduleEntry, zone_mistake

DAY_S = 86_400.0
WEEK = tuple(range(len(Day)))
"""Every day of the week; Monday is 0."""


@dataclass(frozen=True, kw_only=True)
class ScheduledTime:
    """A time of the week with its fewest replicas, in plain values that the decision log can hold."""

    days: tuple[int, ...]
    """Days on which it begins; Monday is 0."""
    from_s: float
    """Seconds after midnight by the clock on the wall, at which the replicas should be ready."""
    to_s: float
    """Seconds after the same midnight at which it ends; more than a day where it goes over the next midnight."""
    time_zone: str
    min_replicas: int

    @property
    def begin(self) -> str:
        """Return when it begins, such as `07:30` or `07:30 Europe/Berlin`."""
        minutes, seconds = divmod(round(self.from_s), 60)
        clock = f"{minutes // 60:02d}:{minutes % 60:02d}" + (f":{seconds:02d}" if seconds else "")
        return clock if self.time_zone == "UTC" else f"{clock} {self.time_zone}"


def scheduled_time(entry: ScheduleEntry) -> ScheduledTime:
    """Return an entry of the spec in plain values."""
    from_s, to_s = _seconds(entry.from_time), _seconds(entry.to_time)
    return ScheduledTime(
        days=tuple(number for number, day in enumerate(Day) if day in entry.days),
        from_s=from_s,
        to_s=to_s if to_s > from_s else to_s + DAY_S,
        time_zone=entry.time_zone,
        min_replicas=entry.min_replicas,
    )


def scheduled_minimum(schedule: Iterable[ScheduledTime], now_s: float, lead_time_s: float) -> int | None:
    """Return the most that is asked for at any time from now to the end of a lead time; None where nothing is.

    `now_s` is in seconds since 1970. Entries whose time zone is not known are left out.
    """
    entry = binding_time(schedule, now_s, lead_time_s)
    return None if entry is None else entry.min_replicas


def binding_time(schedule: Iterable[ScheduledTime], now_s: float, lead_time_s: float) -> ScheduledTime | None:
    """Return the entry that asks for the most at any time from now to the end of a lead time."""
    due = (entry for entry in schedule if _is_due(entry, now_s, lead_time_s))
    return max(due, key=lambda entry: entry.min_replicas, default=None)


def schedule_mistakes(schedule: Iterable[ScheduledTime]) -> tuple[str, ...]:
    """Say which entries are left out, since their time zone is not known."""
    names = dict.fromkeys(entry.time_zone for entry in schedule if _zone(entry.time_zone) is None)
    return tuple(f"schedule: {zone_mistake(name)}" for name in names)


def _is_due(entry: ScheduledTime, now_s: float, lead_time_s: float) -> bool:
    zone = _zone(entry.time_zone)
    if zone is None:
        return False
    return any(
        begin_s <= now_s + lead_time_s and now_s < end_s for begin_s, end_s in _times(entry, zone, now_s, lead_time_s)
    )


def _times(entry: ScheduledTime, zone: ZoneInfo, now_s: float, lead_time_s: float) -> Iterator[tuple[float, float]]:
    """Yield begin and end, in seconds since 1970, of what began lately or begins within the lead time."""
    # Sums on an aware datetime are sums on the wall clock, so 07:30 stays 07:30 when summer time begins.
    today = datetime.fromtimestamp(now_s, zone).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    for days in range(-1 - int(entry.to_s // DAY_S), 2 + int(lead_time_s // DAY_S)):
        midnight = today + timedelta(days=days)
        if midnight.weekday() in entry.days:
            begin, end = (midnight + timedelta(seconds=seconds) for seconds in (entry.from_s, entry.to_s))
            yield begin.timestamp(), end.timestamp()


def _seconds(time_of_day: str) -> float:
    hours, minutes = time_of_day.split(":")
    return 3600.0 * int(hours) + 60.0 * int(minutes)


@cache
def _zone(name: str) -> ZoneInfo | None:
    return None if zone_mistake(name) else ZoneInfo(name)
