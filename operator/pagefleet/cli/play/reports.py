"""What happened, in lines: for logs and pipes, where a live table would be noise. Pure."""

import json
from collections.abc import Iterator, Sequence

from pagefleet.api.v1alpha1 import ServicePhase
from pagefleet.cli.play.view import ServiceView


def describe_changes(before: Sequence[ServiceView], after: Sequence[ServiceView], url: str) -> list[str]:
    """Return one line for each event that lies between two views of all services."""
    old = {view.name: view for view in before}
    lines = [line for view in after for line in _changes(old.pop(view.name, None), view, url)]
    return [*lines, *(f"{name}: gone" for name in old)]


def _changes(before: ServiceView | None, after: ServiceView, url: str) -> Iterator[str]:
    name = after.name
    restarted = 0 if before is None else after.restarts - before.restarts
    if restarted > 0:
        yield f"{name}: starts again ({after.restarts} restarts)"
    if after.message and (before is None or before.message != after.message):
        # A crash in a row that goes on stays in one phase, so the reason is an event of its own.
        yield f"{name}: {after.phase}: {after.message}"
    elif before is None or _count(before) != _count(after):
        yield f"{name}: {_count(after)}" + (f" at {url}/v1" if after.ready and after.asked else "")
    elif after.progress not in ("", after.phase) and _headline(before.progress) != _headline(after.progress):
        yield f"{name}: {after.progress}"


def _count(view: ServiceView) -> str:
    if view.phase is ServicePhase.DRAINING:
        return str(view.phase)
    return f"{view.phase}, {view.ready} of {view.asked} ready"


def _headline(progress: str) -> str:
    """Drop the numbers, so that 63 % after 62 % is no event."""
    return "".join(character for character in progress if not character.isdigit())


def curl_line(url: str, model: str, *, needs_key: bool = False) -> str:
    """Return a command to paste that asks the model something."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello!"}]})
    key = ' -H "Authorization: Bearer $PAGEFLEET_API_KEY"' if needs_key else ""
    return f"curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'"
