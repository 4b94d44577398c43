"""Results for people and for programs: a Markdown table, JSON, and a picture of the frontiers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pagefleet.autoscaler.simulate.acceptance import Verdict
from pagefleet.autoscaler.simulate.cases import OURS
from pagefleet.autoscaler.simulate.frontier import Point, best_tuned, frontier, is_ours


def as_markdown(points: Mapping[str, Sequence[Point]]) -> str:
    """Return one row per family with its best-tuned point on each case: % served in time @ replica hours.

    `<` and `>` stand before the numbers of runs that ended early because they had lost.
    """
    cases = list(points)
    families = list(dict.fromkeys(point.family for of_case in points.values() for point in of_case))
    lines = [f"| policy | {' | '.join(cases)} |", "|---" * (len(cases) + 1) + "|"]
    for family in families:
        cells = [_cell([point for point in points[case] if point.family == family], family) for case in cases]
        lines.append(f"| {family} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(points: Sequence[Point], family: str) -> str:
    if not points:
        return "-"
    best = points[0] if family == OURS else best_tuned(points)
    text = best.figures
    return f"**{text}**" if family == OURS else f"{text} ({best.setting})" if best.setting else text


def as_json(points: Mapping[str, Sequence[Point]], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return every point with its regret against the one that knows the future, and every verdict."""
    cases = {}
    for case, of_case in points.items():
        future = [point for point in of_case if point.family == "clairvoyant"]
        bound = best_tuned(future).outcome if future else None
        cases[case] = [
            {
                "policy": point.family,
                "setting": point.setting,
                "attainment": round(point.outcome.attainment, 5),
                "replica_hours": round(point.outcome.replica_hours, 3),
                "ttft_p50_s": _finite(point.outcome.ttft_p50_s),
                "ttft_p99_s": _finite(point.outcome.ttft_p99_s),
                "scale_events": point.outcome.scale_events,
                "reversals": len(point.outcome.reversals_s),
                "preemptions": point.outcome.preemptions,
                "unfinished": point.outcome.unfinished,
                "stopped_s": point.outcome.stopped_s,
                "regret": None
                if bound is None
                else {
                    "attainment": round(bound.attainment - point.outcome.attainment, 5),
                    "replica_hours_ratio": round(point.outcome.replica_hours / bound.replica_hours, 4),
                },
            }
            for point in of_case
        ]
    return {
        "cases": cases,
        "verdicts": [
            {"case": each.case, "requirement": each.requirement, "found": each.found, "met": each.is_met}
            for each in verdicts
        ],
    }


def _finite(seconds: float) -> float | None:
    return None if seconds == float("inf") else round(seconds, 4)


def plot_frontiers(points: Mapping[str, Sequence[Point]], path: Path) -> None:
    """Draw % served in time over replica hours, one panel per case, one line per family; needs matplotlib.

    Runs that ended early are left out: bounds are no points.
    """
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(3, len(points))
    rows = -(-len(points) // columns)
    figure = Figure(figsize=(5.2 * columns, 3.8 * rows + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    families = list(dict.fromkeys(point.family for of_case in points.values() for point in of_case))
    for index, (case, of_case) in enumerate(points.items()):
        axes = figure.add_subplot(rows, columns, index + 1)
        ours = next((point for point in of_case if point.name == OURS), None)
        for color, family in enumerate(families):
            line = frontier([point for point in of_case if point.family == family and point.outcome.stopped_s is None])
            if family == OURS and ours is not None:
                line = [ours]
            axes.plot(
                [point.outcome.replica_hours for point in line],
                [100 * point.outcome.attainment for point in line],
                marker="*" if is_ours(family) else "o",
                markersize=16 if family == OURS else 10 if is_ours(family) else 4,
                color="black" if family == OURS else colormaps["tab20"](color % 20),
                linestyle="--" if family in ("clairvoyant", "static") else "-",
                linewidth=1,
                zorder=3 if family == OURS else 2,
                label=family,
            )
        if ours is not None:
            axes.set_xlim(0, 3 * ours.outcome.replica_hours)
        axes.set_title(case)
        axes.set_xlabel("replica hours")
        axes.set_ylabel("requests in time, %")
        axes.grid(alpha=0.3)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(path, dpi=110)
