"""What happened, in lines: for logs and pipes, where a live table would be noise. Pure."""

import json
from collections.abc import Iterator, Sequence

from pagefleet.api.v1alpha1 import ServicePhase
from pagefleet.cli.play.scaling import MACHINE_MEMORY
from pagefleet.cli.play.view import ScalingView, ServiceView


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


def describe_decisions(before: Sequence[ServiceView], after: Sequence[ServiceView]) -> list[str]:
    """Return one line for each service whose decision changed between two views."""
    old = {view.name: view.scaling for view in before}
    lines = ((view.name, _decision_line(old.get(view.name), view.scaling)) for view in after)
    return [f"{name}: {line}" for name, line in lines if line]


def _decision_line(before: ScalingView | None, after: ScalingView | None) -> str:
    """Say what was decided; an empty text where it is as before."""
    if after is None:
        return ""
    decision = after.decision
    told = None if before is None else before.decision
    is_new_number = decision.desired != (decision.current if told is None else told.desired)
    is_new_limit = decision.limited_by not in (None, told.limited_by if told else None)
    is_new_condition = not set(decision.conditions) <= set(told.conditions if told else ())
    if not (is_new_number or is_new_limit or is_new_condition):
        return ""
    verb = "would scale" if not after.is_active else "scales"
    count = f"{decision.desired} replica{'' if decision.desired == 1 else 's'}"
    if decision.desired == decision.current:
        sentence = f"stays at {count}"
    else:
        sentence = f"{verb} from {decision.current} to {count} for {decision.reason}"
    if decision.limited_by is not None:
        sentence += f", limited by {decision.limited_by} ({decision.unlimited} without it)"
    note = f": {after.memory_note}" if decision.limited_by == MACHINE_MEMORY else ""
    parts = (*_rates(after), *decision.conditions, *decision.notes)
    return sentence + "".join(f", {part}" for part in parts) + note


def scaling_text(scaling: ScalingView) -> str:
    """Return the latest decision in a few words, for a cell of a table."""
    decision = scaling.decision
    arrow = "" if decision.desired == decision.current else f"{decision.current} → "
    parts = [f"{arrow}{decision.desired} {decision.reason}", *_rates(scaling), *decision.conditions]
    if not scaling.is_active:
        parts.insert(0, "only told")
    if decision.limited_by is not None:
        parts.append(f"limited by {decision.limited_by}")
    if scaling.held_requests:
        parts.append(f"{scaling.held_requests} held")
    return ", ".join(parts)


def _rates(scaling: ScalingView) -> Iterator[str]:
    decision = scaling.decision
    if decision.forecast_per_s:
        yield f"{decision.forecast_per_s:.2g} requests/s to come"
    if decision.service_rate_per_s:
        yield f"{decision.service_rate_per_s:.2g} a replica"


def curl_line(url: str, model: str, *, needs_key: bool = False) -> str:
    """Return a command to paste that asks the model something."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello!"}]})
    key = ' -H "Authorization: Bearer $PAGEFLEET_API_KEY"' if needs_key else ""
    return f"curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'"
