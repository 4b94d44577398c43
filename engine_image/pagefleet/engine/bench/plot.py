"""Pictures of results, where matplotlib is installed; without it one sentence says so and the tables stand alone."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WITHOUT_MATPLOTLIB = "no picture: matplotlib is not installed, run pip install 'pagefleet[bench]'"


@dataclass(frozen=True)
class Line:
    """Hold one curve."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    is_filled: bool = False


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Hold one pair of axes."""

    x_label: str
    y_label: str
    lines: Sequence[Line]
    title: str = ""
    has_points: bool = False
    is_log: bool = False
    """Both axes have logarithmic scales."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Hold one pair of axes with a bar for each name, and a line that none can pass."""

    y_label: str
    values: Mapping[str, float]
    limit: tuple[str, float]
    title: str = ""


def write_plot(path: Path | None, panels: Sequence[Panel | Bars], *, title: str, say: Callable[[str], object]) -> bool:
    """Write the panels side by side as a PNG and tell whether that was possible; does nothing without a path."""
    if path is None:
        return False
    if importlib.util.find_spec("matplotlib") is None:
        say(WITHOUT_MATPLOTLIB)
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(6 * len(panels), 4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize="medium")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        if isinstance(panel, Bars):
            _draw_bars(axes, panel)
        else:
            _draw_lines(axes, panel)
        axes.set(ylabel=panel.y_label, title=panel.title)
        if isinstance(panel, Panel) and panel.is_log:
            axes.set(xscale="log", yscale="log")
        else:
            axes.set(ylim=(0, None))
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    figure.savefig(path, format="png", dpi=120)
    say(f"picture: {path}")
    return True


def _draw_lines(axes: Any, panel: Panel) -> None:
    for line in panel.lines:
        if line.is_filled:
            axes.fill_between(line.x, line.y, label=line.label, alpha=0.4)
        else:
            axes.plot(line.x, line.y, label=line.label, marker="o" if panel.has_points else None)
    axes.set(xlabel=panel.x_label)


def _draw_bars(axes: Any, panel: Bars) -> None:
    drawn = axes.bar(list(panel.values), list(panel.values.values()))
    axes.bar_label(drawn, fmt="{:,.0f}")
    label, limit = panel.limit
    axes.axhline(limit, label=label, linestyle="--", color="gray")
