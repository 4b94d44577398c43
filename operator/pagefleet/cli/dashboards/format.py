"""Values with their units, short enough for an axis."""

from pagefleet.cli.dashboards.board import Unit

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
_COUNTS = ("", "k", "M", "G", "T")


def format_value(value: float, unit: Unit) -> str:
    """Return a value as a person writes it, such as 85 %, 120 ms or 1.4 GiB."""
    match unit:
        case Unit.RATIO:
            return f"{100 * value:.3g} %"
        case Unit.SECONDS:
            return _seconds(value)
        case Unit.BYTES:
            return _scaled(value, _BYTES, 1024, " ")
        case Unit.YES_OR_NO:
            return "yes" if value else "no"
        case _:
            suffix = unit.value.removeprefix("suffix:") if unit.value.startswith("suffix:") else ""
            return f"{_scaled(value, _COUNTS, 1000, '')}{suffix}"


def _seconds(value: float) -> str:
    if abs(value) >= 120:
        return f"{value / 60:.3g} min"
    if abs(value) >= 1 or value == 0:
        return f"{value:.3g} s"
    return f"{1000 * value:.3g} ms"


def _scaled(value: float, names: tuple[str, ...], base: int, space: str) -> str:
    power = 0
    while abs(value) >= base and power < len(names) - 1:
        value /= base
        power += 1
    return f"{value:.3g}{space}{names[power]}"
