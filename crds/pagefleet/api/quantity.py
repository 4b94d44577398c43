"""Quantities (`80Gi`) and durations (`2s`, `1m30s`): text as the user wrote it, numbers on demand."""

import re
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from pagefleet.api.cel import Rule, pattern, section_rules, text

_UNIT_BYTES: dict[str, int] = {
    "": 1,
    **{unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
}
_UNIT_MILLISECONDS: dict[str, int] = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

QUANTITY_PATTERN = r"^[0-9]{1,19}(\.[0-9]{1,6})?(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?$"
DURATION_PATTERN = r"^([0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h|d))+$"

_QUANTITY = re.compile(r"(?P<number>[0-9]{1,19}(?:\.[0-9]{1,6})?)(?P<unit>[KMGTPE]i|[kMGTPE])?")
_DURATION_PART = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,3})?)(?P<unit>ms|[smhd])")


def quantity_bytes(text: str) -> int:
    """Return the bytes of a Kubernetes quantity such as `80Gi`, `1.5G` or `1024`, rounded down.

    Raises ValueError with a value that would work. Milli and exponent forms of Kubernetes are refused: no memory size
    needs them.
    """
    match = _QUANTITY.fullmatch(text)
    size = int(Decimal(match["number"]) * _UNIT_BYTES[match["unit"] or ""]) if match else 0
    if size <= 0:
        raise ValueError(f"{text!r} is not an amount of memory; write a number above 0 with a unit, such as 80Gi")
    return size


def duration_s(text: str) -> float:
    """Return the seconds of a duration such as `100ms`, `2s`, `15m` or `1h30m`.

    Raises ValueError with a value that would work. A bare number is refused, since its unit would be a guess.
    """
    if not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError(
            f"{text!r} is not a duration; write a number with ms, s, m, h or d, such as {_with_unit(text)}"
        )
    milliseconds = sum(
        Decimal(part["number"]) * _UNIT_MILLISECONDS[part["unit"]] for part in _DURATION_PART.finditer(text)
    )
    if milliseconds <= 0:
        raise ValueError(f"{text!r} is no time at all; write a duration above 0, such as 100ms")
    return float(milliseconds / 1000)


def _with_unit(text: str) -> str:
    return f"{text}s" if re.fullmatch("[1-9][0-9]{0,8}", text) else "100ms or 15m"


def _number_as_text(value: object) -> object:
    # YAML reads `memory: 85899345920` and `ttft: 2` as numbers: one is a valid quantity, the other gets our sentence.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _checked_quantity(text: str) -> str:
    quantity_bytes(text)
    return text


def _checked_duration(text: str) -> str:
    duration_s(text)
    return text


_QUANTITY_RULE = Rule(
    f"type(self) == int ? self > 0 : self.matches({pattern(QUANTITY_PATTERN)}) && self.matches(r'^[0.]*[1-9]')",
    text("'%s' is not an amount of memory; write a number above 0 with a unit, such as 80Gi", "self"),
)
_DURATION_FORM = f"self.matches({pattern(DURATION_PATTERN)})"
_DURATION_RULES = (
    Rule(
        _DURATION_FORM,
        text(
            "'%s' is not a duration; write a number with ms, s, m, h or d, such as %s",
            "self",
            "self.matches(r'^[1-9][0-9]{0,8}$') ? self + 's' : '100ms or 15m'",
        ),
    ),
    Rule(
        f"!{_DURATION_FORM} || self.matches(r'[1-9]')",
        text("'%s' is no time at all; write a duration above 0, such as 100ms", "self"),
    ),
)

Quantity = Annotated[
    str,
    BeforeValidator(_number_as_text),
    Field(max_length=32),
    AfterValidator(_checked_quantity),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 32, **section_rules(_QUANTITY_RULE)}),
]
"""An amount of memory as Kubernetes writes it; `quantity_bytes` gives the number."""

Duration = Annotated[
    str,
    BeforeValidator(_number_as_text),
    Field(max_length=32),
    AfterValidator(_checked_duration),
    WithJsonSchema({"type": "string", "maxLength": 32, **section_rules(*_DURATION_RULES)}),
]
"""A time span with its unit; `duration_s` gives the number."""
