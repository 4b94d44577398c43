"""The rows as a table; colour marks what is wrong and nothing else."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from pagefleet.api.v1alpha1 import ServicePhase
from pagefleet.cli.top.view import ServiceRow

UNKNOWN = "–"
WARNING, WRONG = "yellow", "red"
_CALM_PHASES = (ServicePhase.READY, ServicePhase.IDLE, ServicePhase.STOPPED, ServicePhase.DRAINING, None)


def render_table(rows: Sequence[ServiceRow], caption: str) -> Table:
    """Render every service as one row; what is unknown is a dash."""
    table = Table(box=None, pad_edge=False, caption=caption, caption_justify="left", header_style="bold")
    table.add_column("NAMESPACE", no_wrap=True)
    table.add_column("NAME", no_wrap=True)
    table.add_column("PHASE", no_wrap=True)
    for heading in ("READY", "DESIRED", "KV%", "QUEUE", "REQ/S", "MISSED%", "AGE"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("REASON", no_wrap=True)
    table.add_column("LIMITED BY", no_wrap=True)
    table.add_column("CONDITIONS", overflow="fold")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: ServiceRow) -> list[Text]:
    signals = row.signals
    return [
        Text(row.namespace),  # Text: brackets are no markup
        Text(row.name),
        Text(row.phase or UNKNOWN, style=_phase_style(row.phase)),
        Text(f"{row.ready}/{row.asked}", style=WARNING if row.ready < row.asked else ""),
        _number(row.desired),
        _number(signals.kv_percent, 80, 95),
        _number(signals.queue_depth),
        _number(signals.requests_per_second, digits=1),
        _number(signals.missed_percent, 1, 5, digits=1),
        _number(signals.age_seconds, 10, 30, unit="s"),
        Text(row.reason or UNKNOWN),
        Text(row.limited_by or UNKNOWN),
        Text(", ".join(_remarks(row)), style=WARNING),
    ]


def _phase_style(phase: ServicePhase | None) -> str:
    if phase is ServicePhase.FAILED:
        return WRONG
    return "" if phase in _CALM_PHASES else WARNING


def _number(
    value: float | None, warning: float | None = None, wrong: float | None = None, *, digits: int = 0, unit: str = ""
) -> Text:
    """Return a number, coloured from a value on; without one, a dash."""
    if value is None:
        return Text(UNKNOWN)
    style = ""
    if wrong is not None and value >= wrong:
        style = WRONG
    elif warning is not None and value >= warning:
        style = WARNING
    return Text(f"{value:.{digits}f}{unit}", style=style)


def _remarks(row: ServiceRow) -> list[str]:
    silent = row.signals.silent_replicas
    remarks = list(row.conditions)
    if row.mode == "Conflict" and "Conflict" not in remarks:
        remarks.append("Conflict")
    if silent:
        remarks.append(f"{silent} silent")
    return remarks
