"""A board as a picture, for people without Grafana: the same panels at the same places. Needs matplotlib."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib import dates, ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pagefleet.cli.dashboards.answers import Answer, AnsweredPanel, Series
from pagefleet.cli.dashboards.board import COLUMNS, Board, Panel, PanelKind, Place, Row, Threshold, lay_out
from pagefleet.cli.dashboards.format import format_value

CELL_INCHES = (0.78, 0.36)
"""Width and height of a cell of the grid."""
HEADER_INCHES = 0.6
DOTS_PER_INCH = 80
MOST_LEGENDS = 8
COLOURS = {"green": "#3a8f4c", "orange": "#e08a1e", "red": "#cc3b3b"}
GREY = "#777777"
BEFORE_LEGEND = (0.14, 0.26, 0.82, 0.58)
"""Axes within a panel: left, bottom, width, height as shares."""


def draw_board(
    board: Board, answered: Mapping[Panel, AnsweredPanel], path: Path, *, start_s: float, end_s: float
) -> None:
    """Write a board's picture as a PNG."""
    parts = list(lay_out(board))
    cells_high = max(place.y + place.height for _, place in parts)
    width, height = COLUMNS * CELL_INCHES[0], cells_high * CELL_INCHES[1] + HEADER_INCHES
    figure: Any = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    moment = datetime.fromtimestamp(end_s, UTC)
    figure.text(0.01, 1 - 0.4 / height, board.title, fontsize=16, weight="bold", va="center")
    figure.text(0.99, 1 - 0.4 / height, f"until {moment:%Y-%m-%d %H:%M:%S} UTC", color=GREY, ha="right", va="center")
    for part, place in parts:
        box = _box(place, height)
        if isinstance(part, Row):
            figure.text(0.01, box[1] + box[3] / 2, part.title, fontsize=12, weight="bold", color="#2b5c8a", va="center")
        else:
            _draw_panel(figure, box, answered[part], (start_s, end_s))
    figure.savefig(path, dpi=DOTS_PER_INCH)


def _box(place: Place, height_inches: float) -> tuple[float, float, float, float]:
    """Return left, bottom, width and height as shares of the figure."""
    cell_height = CELL_INCHES[1] / height_inches
    top = 1 - HEADER_INCHES / height_inches - place.y * cell_height
    high = place.height * cell_height
    return place.x / COLUMNS, top - high, place.width / COLUMNS, high


def _draw_panel(
    figure: Any, box: tuple[float, float, float, float], answered: AnsweredPanel, span: tuple[float, float]
) -> None:
    left, bottom, width, height = box
    panel = answered.panel
    figure.text(left + 0.008, bottom + height * 0.94, panel.title, fontsize=10, weight="bold", va="center")
    within = {
        PanelKind.NUMBER: (0.04, 0.08, 0.92, 0.72),
        PanelKind.TABLE: (0.01, 0.05, 0.98, 0.8),
        PanelKind.BARS: (0.34, 0.1, 0.58, 0.76),
        PanelKind.STATES: (0.34, 0.14, 0.62, 0.72),
        PanelKind.LINES: BEFORE_LEGEND,
    }[panel.kind]
    axes = figure.add_axes(
        (left + within[0] * width, bottom + within[1] * height, within[2] * width, within[3] * height)
    )
    if answered.is_empty:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no data", ha="center", va="center", color=GREY, transform=axes.transAxes)
        return
    match panel.kind:
        case PanelKind.LINES:
            _draw_lines(axes, answered, span)
        case PanelKind.NUMBER:
            _draw_numbers(axes, answered, span)
        case PanelKind.STATES:
            _draw_states(axes, answered, span)
        case PanelKind.BARS:
            _draw_bars(axes, answered)
        case PanelKind.TABLE:
            _draw_table(axes, answered)


def _named(answered: AnsweredPanel) -> list[tuple[str, Series]]:
    return [(answer.name(series), series) for answer in answered.answers for series in answer.series if series.values]


def _times(series: Series) -> list[datetime]:
    return [datetime.fromtimestamp(time_s, UTC) for time_s in series.times_s]


def _draw_lines(axes: Any, answered: AnsweredPanel, span: tuple[float, float]) -> None:
    panel = answered.panel
    named = _named(answered)
    if panel.is_stacked:
        _stack(axes, named)
    else:
        for name, series in named:
            axes.plot(_times(series), series.values, label=name, linewidth=1.2)
    for threshold in panel.thresholds:
        axes.axhline(threshold.value, color=COLOURS[threshold.colour], linewidth=0.8, linestyle="--", zorder=0)
    most = max((value for _, series in named for value in series.values), default=0.0)
    if panel.is_share:
        axes.set_ylim(0, max(1.0, most) * 1.02)
    elif not panel.may_be_negative:
        top = axes.get_ylim()[1] if panel.is_stacked and most > 0 else most * 1.15
        axes.set_ylim(0, top or 1.2 * max((each.value for each in panel.thresholds), default=1.0))
    _set_time_axis(axes, span)
    axes.yaxis.set_major_locator(ticker.MaxNLocator(4))
    axes.yaxis.set_major_formatter(lambda value, _: format_value(value, panel.unit))
    axes.grid(alpha=0.25, linewidth=0.6)
    legends, labels = axes.get_legend_handles_labels()
    if labels:
        axes.legend(
            legends[:MOST_LEGENDS],
            labels[:MOST_LEGENDS],
            loc="upper left",
            bbox_to_anchor=(-0.12, -0.14),
            ncols=4,
            fontsize=7,
            frameon=False,
            columnspacing=1.0,
            handlelength=1.2,
        )


def _stack(axes: Any, named: Sequence[tuple[str, Series]]) -> None:
    moments = sorted({time_s for _, series in named for time_s in series.times_s})
    heights = [
        [dict(zip(series.times_s, series.values, strict=True)).get(at, 0.0) for at in moments] for _, series in named
    ]
    when = [datetime.fromtimestamp(at, UTC) for at in moments]
    axes.stackplot(when, heights, labels=[name for name, _ in named], alpha=0.55)


def _set_time_axis(axes: Any, span: tuple[float, float]) -> None:
    start_s, end_s = span
    axes.set_xlim(datetime.fromtimestamp(start_s, UTC), datetime.fromtimestamp(end_s, UTC))
    axes.xaxis.set_major_locator(dates.AutoDateLocator(minticks=3, maxticks=5))
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M:%S" if end_s - start_s < 600 else "%H:%M", tz=UTC))
    axes.tick_params(labelsize=7, length=2, color=GREY, labelcolor="#444444")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#bbbbbb")


def _colour(value: float, thresholds: Sequence[Threshold]) -> str:
    reached = [each.colour for each in thresholds if value >= each.value]
    return COLOURS[reached[-1] if reached else "green"]


def _draw_numbers(axes: Any, answered: AnsweredPanel, span: tuple[float, float]) -> None:
    axes.set_axis_off()
    named = _named(answered)
    for number, (name, series) in enumerate(named):
        at = (number + 0.5) / len(named)
        value = format_value(series.last, answered.panel.unit)
        colour = _colour(series.last, answered.panel.thresholds)
        axes.text(at, 0.58, value, fontsize=20, color=colour, ha="center", va="center", transform=axes.transAxes)
        if len(named) > 1:
            axes.text(at, 0.12, name, fontsize=8, color=GREY, ha="center", va="center", transform=axes.transAxes)
    if len(named) == 1 and len(named[0][1].values) > 1:
        axes.fill_between(_times(named[0][1]), named[0][1].values, alpha=0.12, color=COLOURS["green"], linewidth=0)
        axes.set_ylim(0, max(max(named[0][1].values), 1e-9) * 1.6)
        axes.set_xlim(datetime.fromtimestamp(span[0], UTC), datetime.fromtimestamp(span[1], UTC))


def _draw_bars(axes: Any, answered: AnsweredPanel) -> None:
    named = sorted(_named(answered), key=lambda each: each[0], reverse=True)
    names = [name for name, _ in named]
    values = [series.last for _, series in named]
    colours = [_colour(value, answered.panel.thresholds) for value in values]
    axes.barh(names, values, color=colours, alpha=0.7, height=0.7)
    most = max([*values, 1e-9])
    for place, value in enumerate(values):
        axes.text(value + most * 0.01, place, format_value(value, answered.panel.unit), fontsize=7, va="center")
    axes.set_xlim(0, most * 1.2)
    axes.tick_params(labelsize=7, length=0)
    axes.set_xticks([])
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)


def _draw_states(axes: Any, answered: AnsweredPanel, span: tuple[float, float]) -> None:
    named = _named(answered)
    moments = sorted({time_s for _, series in named for time_s in series.times_s})
    step_days = min((later - earlier for earlier, later in pairwise(moments)), default=1.0) / 86_400
    for place, (_, series) in enumerate(named):
        spans = [(dates.date2num(moment), step_days) for moment in _times(series)]
        colours = [COLOURS["orange" if value >= 1 else "green"] for value in series.values]
        axes.broken_barh(spans, (place - 0.3, 0.6), facecolors=colours, linewidth=0)
    axes.set_yticks(range(len(named)), [name for name, _ in named])
    axes.set_ylim(-0.6, max(len(named), 3) - 0.4)
    _set_time_axis(axes, span)


def _draw_table(axes: Any, answered: AnsweredPanel) -> None:
    axes.set_axis_off()
    header, rows = table_cells(answered.answers)
    table = axes.table(cellText=rows, colLabels=header, cellLoc="left", loc="upper left", edges="B")
    table.auto_set_font_size(False)
    table.set_fontsize(8)
    table.auto_set_column_width(range(len(header)))
    for (row, _), cell in table.get_celld().items():
        cell.set_edgecolor("#dddddd")
        if row == 0:
            cell.set_text_props(weight="bold", ha="left")


def table_cells(answers: Sequence[Answer]) -> tuple[list[str], list[list[str]]]:
    """Join the answers by the labels that all of them have; return the header and the rows.

    A column for each label, and one for each query unless its value is the constant 1 of an info metric.
    """
    shared = _shared_labels(answers)
    extra = [sorted({*series.labels} - {*shared}) for answer in answers for series in answer.series[:1]]
    label_names = [*shared, *(name for names in extra for name in names)]
    is_info = bool(answers) and all(series.last == 1 for answer in answers for series in answer.series) and any(extra)
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for answer in answers:
        for series in answer.series:
            row = rows.setdefault(tuple(series.labels.get(name, "") for name in shared), {})
            row |= series.labels
            if series.values:
                row[f"value {answer.query.legend}"] = format_value(series.last, answer.query.unit)
    columns = [] if is_info else [f"value {answer.query.legend}" for answer in answers]
    header = [*label_names, *(column.removeprefix("value ") for column in columns)]
    return header, [[row.get(name, "–") for name in (*label_names, *columns)] for _, row in sorted(rows.items())]


def _shared_labels(answers: Sequence[Answer]) -> list[str]:
    sets = [{*series.labels} for answer in answers for series in answer.series]
    return sorted(set.intersection(*sets)) if sets else []
