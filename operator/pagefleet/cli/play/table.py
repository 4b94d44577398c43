"""The live table of a terminal."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from pagefleet.api.v1alpha1 import ServicePhase
from pagefleet.cli.play.reports import scaling_text
from pagefleet.cli.play.scaling import MACHINE_MEMORY
from pagefleet.cli.play.view import ServiceView

_COLOURS = {
    ServicePhase.READY: "green",
    ServicePhase.FAILED: "red",
    ServicePhase.DEGRADED: "yellow",
    ServicePhase.DRAINING: "dim",
    ServicePhase.STOPPED: "dim",
}


def render_table(views: Sequence[ServiceView], url: str) -> Table:
    """Render every service as one row; what is unknown is a dash."""
    table = Table(caption=f"OpenAI API at {url}/v1, Ctrl-C drains and ends", caption_justify="left")
    for heading in ("Service", "Phase", "Replicas", "KV %", "Queue", "Tokens/s", "Model"):
        table.add_column(heading, no_wrap=True)
    if is_scaled := any(view.scaling is not None for view in views):
        table.add_column("Scaling", overflow="fold")
    table.add_column("Message", overflow="fold")
    for view in views:
        table.add_row(
            Text(view.name),  # Text: brackets in names and messages are no markup
            Text(view.phase, style=_COLOURS.get(view.phase, "cyan")),
            f"{view.ready}/{view.asked}",
            "–" if view.occupancy is None else f"{view.occupancy * 100:.0f}",
            "–" if view.queue_depth is None else str(view.queue_depth),
            "–" if view.tokens_per_s is None else f"{view.tokens_per_s:.0f}",
            Text(view.served_name),
            *([Text(scaling_text(view.scaling) if view.scaling else "–")] if is_scaled else []),
            Text(" ".join(filter(None, (view.message, view.progress, _restarts(view), _memory(view))))),
        )
    return table


def _restarts(view: ServiceView) -> str:
    return f"({view.restarts} restarts)" if view.restarts else ""


def _memory(view: ServiceView) -> str:
    """Say why the machine holds no more replicas, while that is what limits them."""
    scaling = view.scaling
    return scaling.memory_note if scaling is not None and scaling.decision.limited_by == MACHINE_MEMORY else ""
