"""`pagefleet runbook`: what an alert means and what to do about it, without a network."""

from __future__ import annotations

import difflib
from importlib.resources import files
from typing import Annotated

import typer

from pagefleet.cli.errors import UserMistake

_FOLDER = "runbooks"


def runbook(
    alert: Annotated[
        str | None, typer.Argument(metavar="ALERT", help="Such as PagefleetStuckPending.", show_default=False)
    ] = None,
) -> None:
    """Print what an alert means, what to look at and what to do; without a name, list the alerts."""
    pages = read_runbooks()
    if alert is None:
        width = max(map(len, pages))
        for name, page in pages.items():
            typer.echo(f"{name:{width}}  {_meaning(page)}")
        return
    by_lower = {name.lower(): name for name in pages}
    asked = alert.lower()
    if asked not in by_lower:
        near = difflib.get_close_matches(asked, by_lower, n=1)
        advice = f"did you mean {by_lower[near[0]]}?" if near else f"write for example {next(iter(pages))}."
        raise UserMistake(f"There is no alert {alert!r}: {advice} `pagefleet runbook` lists them.")
    typer.echo(pages[by_lower[asked]], nl=False)


def read_runbooks() -> dict[str, str]:
    """Return the pages, Markdown, by the alert's name."""
    folder = files("pagefleet.cli") / _FOLDER
    pages = {entry.name.removesuffix(".md"): entry for entry in folder.iterdir() if entry.name.endswith(".md")}
    return {name: pages[name].read_text(encoding="utf-8") for name in sorted(pages)}


def _meaning(page: str) -> str:
    """Return the first sentence under "What it means"."""
    text = " ".join(page.split("## What it means", 1)[1].split("##", 1)[0].split())
    return text.split(". ", 1)[0].removesuffix(".")
