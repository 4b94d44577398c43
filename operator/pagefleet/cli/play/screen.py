"""Where people look: a live table on a terminal, else one line per event on standard error.

The answer of `--ask` and the line to paste go to standard output, so that a pipe gets them alone.
"""

from collections.abc import Callable, Sequence

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from pagefleet.cli.play.reports import describe_changes, describe_decisions
from pagefleet.cli.play.table import render_table
from pagefleet.cli.play.view import ServiceView


class Screen:
    """Show services; `views` is called whenever they are shown."""

    def __init__(self, url: str, views: Callable[[], Sequence[ServiceView]]) -> None:
        self._url = url
        self._views = views
        self._console = Console()
        self._is_terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live: Live | None = None
        self._told: Sequence[ServiceView] = ()

    def show_table(self) -> None:
        """Put the live table at the bottom of a terminal."""
        if self._is_terminal and self._live is None:
            self._live = Live(get_renderable=self._table, console=self._console, auto_refresh=False)
            self._live.start(refresh=True)

    def hide_table(self) -> None:
        """Leave the table as it is, and give the terminal back."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def refresh_table(self) -> None:
        """Draw the table again with the present numbers."""
        if self._live is not None:
            self._live.refresh()

    def tell_changes(self) -> None:
        """Write a line for every event since the last call where there is no table, and for every decision anywhere."""
        views = self._views()
        lines = describe_decisions(self._told, views)
        if not self._is_terminal:
            lines += describe_changes(self._told, views, self._url)
        self._told = views
        for line in lines:
            self.note(line)

    def note(self, line: str) -> None:
        """Write a line about what goes on."""
        if self._live is not None:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            typer.echo(line, err=True)

    def write(self, text: str, *, end: str = "") -> None:
        """Write what was asked for to standard output, at once."""
        if self._live is not None:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            typer.echo(text + end, nl=False)

    def _table(self) -> Table:
        return render_table(self._views(), self._url)
