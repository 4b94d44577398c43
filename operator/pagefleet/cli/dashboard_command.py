"""`pagefleet dashboard`: a board as Grafana's JSON, or as a picture of what a Prometheus answers to its queries."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagefleet.cli.errors import CommandError, UserMistake, require_extra

if TYPE_CHECKING:
    from pagefleet.cli.dashboards.board import Board

POINTS = 240
"""Of a line, over the whole range."""

BoardName = Annotated[str, typer.Argument(metavar="BOARD", help="fleet, service or autoscaler.")]


def json(board: BoardName) -> None:
    """Print a board as Grafana's JSON, for import into Grafana 10 or newer; the chart brings the same."""
    from pagefleet.cli.dashboards.grafana import dashboard_json

    typer.echo(dashboard_json(_find(board)), nl=False)


def draw(
    board: BoardName,
    prometheus: Annotated[str, typer.Option(metavar="URL", help="Such as http://127.0.0.1:9090.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The picture, a PNG.")] = Path("board.png"),
    span: Annotated[str, typer.Option("--range", metavar="TIME", help="How far back, such as 15m or 6h.")] = "1h",
    rate_interval: Annotated[
        str, typer.Option(metavar="TIME", help="Over which rates are taken; at least four scrape intervals.")
    ] = "1m",
    namespace: Annotated[str, typer.Option(help="Only this namespace; a regular expression.")] = ".*",
    service: Annotated[str, typer.Option(help="Only this service; a regular expression.")] = ".*",
    model: Annotated[str, typer.Option(help="Only this model; a regular expression.")] = ".*",
) -> None:
    """Draw a board without Grafana: ask a Prometheus each panel's queries and write the picture."""
    chosen = _find(board)
    span_s, rate_interval_s = _seconds("--range", span), _seconds("--rate-interval", rate_interval)
    if not prometheus.startswith(("http://", "https://")):
        raise UserMistake(f"--prometheus {prometheus} is no URL: write for example http://127.0.0.1:9090.")
    if not out.parent.is_dir():
        raise UserMistake(f"--out {out}: there is no folder {out.parent}; make it, or name one that exists.")
    require_extra("bench", ("matplotlib",))
    from pagefleet.cli.dashboards.draw import draw_board
    from pagefleet.cli.dashboards.prometheus import Prometheus, PrometheusError, TimeRange

    end_s = time.time()
    times = TimeRange(end_s - span_s, end_s, max(1, span_s // POINTS))
    choices = {"namespace": namespace, "service": service, "model": model}
    server = Prometheus(prometheus)
    try:
        answered = {
            panel: server.answer_panel(panel, times, choices, rate_interval_s=rate_interval_s)
            for panel in chosen.panels
        }
    except PrometheusError as error:
        raise CommandError(f"{error}.") from error
    draw_board(chosen, answered, out, start_s=times.start_s, end_s=end_s)
    for panel, answer in answered.items():
        if answer.is_empty:
            typer.echo(f"no data: {panel.title}")
    typer.echo(f"picture: {out}")


def _find(name: str) -> Board:
    from pagefleet.cli.dashboards.boards import BOARDS

    if name not in BOARDS:
        raise UserMistake(f"There is no board {name!r}: write one of {', '.join(BOARDS)}.")
    return BOARDS[name]


def _seconds(flag: str, text: str) -> int:
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    found = re.fullmatch(r"([1-9]\d{0,5})([smhd])", text)
    if found is None:
        raise UserMistake(f"{flag} {text} is no time: write a whole number with s, m, h or d, for example {flag} 15m.")
    return int(found[1]) * units[found[2]]
