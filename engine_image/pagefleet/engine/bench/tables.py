"""What every benchmark prints and writes: a table of text, and JSON."""

import json
from collections.abc import Sequence
from pathlib import Path

from pagefleet.engine.errors import StartupError


def text_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return aligned columns, the first to the left and the others to the right; floats get three digits."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def threads_text(report: dict[str, object]) -> str:
    """Return with how many threads a report was measured."""
    return "1 thread" if report["threads"] == 1 else f"{report['threads']} threads"


def check_writable(flag: str, path: Path | None) -> None:
    """Raise StartupError when a file cannot be written: to be known before minutes of measuring, not after."""
    if path is None:
        return
    try:
        path.open("a").close()
    except OSError as error:
        raise StartupError(
            f"{flag} {path} cannot be written: {error.strerror}; name a file in a folder that is there"
        ) from error


def write_json(report: dict[str, object], path: Path | None) -> None:
    """Write a report; does nothing without a path."""
    if path is not None:
        path.write_text(json.dumps(report, indent=2) + "\n")


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
