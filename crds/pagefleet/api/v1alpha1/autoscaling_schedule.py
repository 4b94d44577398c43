"""Times at which a surge is known to come, so that replicas are ready for it."""

import re
from enum import StrEnum
from typing import Annotated, Final, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema, model_validator

from pagefleet.api.base import ApiModel, PositiveInteger
from pagefleet.api.cel import Rule, Rules, pattern, section_rules, text

MOST_ENTRIES = 16
CHECK_TIME_ZONES: Final = "check_time_zones"
"""Key of a validation context: whether a zone that this machine does not know is a mistake.

The API server cannot know zones, so what a cluster holds is read without: one wrong name must not stop a service.
"""

_TIME_PATTERN = "^([01][0-9]|2[0-3]):[0-5][0-9]|24:00$"
_ZONE_PATTERN = "^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$"


class Day(StrEnum):
    """A day of the week."""

    MON = "Mon"
    TUE = "Tue"
    WED = "Wed"
    THU = "Thu"
    FRI = "Fri"
    SAT = "Sat"
    SUN = "Sun"


def zone_mistake(name: str) -> str | None:
    """Say that this machine knows no time zone of the name; None where it does."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # a folder of the database raises OSError
        return f"timeZone {name} is not known; write a name of the IANA database, such as Europe/Berlin"
    return None


def _checked_time(value: str) -> str:
    if not re.fullmatch(_TIME_PATTERN, value):
        raise ValueError(f"'{value}' is no time of day; write hours and minutes in quotes, such as '07:30'")
    return value


def _checked_zone(value: str, info: ValidationInfo) -> str:
    if not re.fullmatch(_ZONE_PATTERN, value):
        raise ValueError(f"'{value}' is no time zone; write a name of the IANA database, such as Europe/Berlin")
    mistake = zone_mistake(value) if info.context and info.context.get(CHECK_TIME_ZONES) else None
    if mistake is not None:
        raise ValueError(mistake)
    return value


_TIME_RULE = Rule(
    f"self.matches({pattern(_TIME_PATTERN)})",
    text("'%s' is no time of day; write hours and minutes in quotes, such as '07:30'", "self"),
)
_ZONE_RULE = Rule(
    f"self.matches({pattern(_ZONE_PATTERN)})",
    text("'%s' is no time zone; write a name of the IANA database, such as Europe/Berlin", "self"),
)
TimeOfDay = Annotated[
    str,
    Field(max_length=32),
    AfterValidator(_checked_time),
    WithJsonSchema({"type": "string", "maxLength": 32}),
    Rules((_TIME_RULE,)),
]
"""Hours and minutes from 00:00 to 24:00."""
TimeZone = Annotated[str, Field(max_length=64), AfterValidator(_checked_zone), Rules((_ZONE_RULE,))]

_SPAN_RULE = Rule(
    "self.from != self.to",
    text(
        "from and to are both %s, which is no time at all; for a whole day write from: '00:00' and to: '24:00'",
        "self.from",
    ),
)


class ScheduleEntry(ApiModel):
    """A time of the week in which at least so many replicas are ready, whatever the load."""

    model_config = ConfigDict(json_schema_extra=section_rules(_SPAN_RULE))

    days: Annotated[tuple[Day, ...], Field(min_length=1, max_length=len(Day))] = tuple(Day)
    """Days on which it begins, such as [Mon, Tue]; left out, every day."""
    from_time: TimeOfDay = Field(alias="from")
    """When the replicas should be ready, such as "07:30". They are started as long before as a start takes."""
    to_time: TimeOfDay = Field(alias="to")
    """When they need no longer be there, such as "20:00"; a time before `from` is one of the next day."""
    time_zone: TimeZone = "UTC"
    """Time zone of both, such as Europe/Berlin, with its daylight saving time."""
    min_replicas: PositiveInteger
    """Fewest replicas in this time."""

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if self.from_time == self.to_time:
            raise ValueError(
                f"from and to are both {self.from_time}, which is no time at all; "
                "for a whole day write from: '00:00' and to: '24:00'"
            )
        return self
