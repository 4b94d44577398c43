"""`pagefleet replay`: recorded decisions again, under another configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagefleet.cli.errors import EXIT_FAILURE, UserMistake

if TYPE_CHECKING:
    from pagefleet.autoscaler.decision import Decision
    from pagefleet.autoscaler.replay import Totals
    from pagefleet.autoscaler.settings import Settings

MOST_ROWS = 40
EPOCH_S = 1e9
"""Times from here on are dates; smaller ones are seconds of a simulation."""


def replay(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="Decision log (JSON lines).", show_default=False)],
    config: Annotated[
        Path | None,
        typer.Option(
            help="An InferenceService, its spec.autoscaling alone, or settings such as load_share (YAML). "
            "Left out: as recorded.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    service: Annotated[
        str | None, typer.Option(help="Only this service: name or namespace/name.", show_default=False)
    ] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write all differences here.", metavar="FILE", show_default=False)
    ] = None,
) -> None:
    """Decide again what a log recorded, and show what would have differed: exit code 0 nothing, 1 something.

    The reports are those of the recorded fleet (open loop): queues that fewer or more replicas would have had are not
    in them, and missed objectives were counted against the recorded ones.
    """
    from pagefleet.autoscaler.decision_record import DecisionLogError, read_records
    from pagefleet.autoscaler.replay import replay as decide_again
    from pagefleet.autoscaler.replay import summarize

    change = _change(config) if config is not None else _as_recorded
    if not log.is_file():
        raise UserMistake(f"{log} is no file: write the path of a decision log.")
    try:
        with log.open(encoding="utf-8") as lines:
            records = (
                record
                for record in read_records(lines)
                if service in (None, record.service, f"{record.namespace}/{record.service}")
            )
            totals = summarize(decide_again(records, change))
    except DecisionLogError as error:
        raise UserMistake(f"{log}: {error}.") from error
    except UnicodeDecodeError as error:
        raise UserMistake(f"{log} is no text: write the path of a decision log.") from error
    if not totals:
        of_whom = f" of {service}" if service else ""
        raise UserMistake(f"{log} holds no decision{of_whom} with its state: begin the log at a line with settings.")
    for name, each in totals.items():
        _show(name, each)
    typer.echo("\nReports are of the recorded fleet (open loop): other numbers would have changed its queues.")
    if json_path is not None:
        json_path.write_text(json.dumps({name: _as_json(each) for name, each in totals.items()}, indent=1) + "\n")
    if any(each.differing for each in totals.values()):
        raise typer.Exit(EXIT_FAILURE)


def _as_recorded(settings: Settings) -> Settings:
    return settings


def _change(path: Path) -> Callable[[Settings], Settings]:
    """Return what a configuration changes in recorded settings."""
    import yaml

    from pagefleet.api.manifest import read_manifests
    from pagefleet.autoscaler.service_settings import under

    if not path.is_file():
        raise UserMistake(f"--config {path} is no file: write the path of a YAML file.")
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserMistake(f"--config {path} is no YAML: {str(error).splitlines()[0]}.") from error
    if not isinstance(content, dict) or not content:
        raise UserMistake(f"--config {path} holds no settings: write for example maxReplicas: 8.")
    if "kind" not in content:
        return _change_of_mapping(path, content)
    manifests = read_manifests(path)
    if manifests.errors:
        raise UserMistake([str(error) for error in manifests.errors])
    specs = [loaded.service.spec.autoscaling for loaded in manifests.services]
    if len(specs) != 1 or specs[0] is None:
        raise UserMistake(f"--config {path} must hold one InferenceService with spec.autoscaling.")
    spec = specs[0]
    return lambda settings: under(spec, settings)


def _change_of_mapping(path: Path, content: Mapping[str, Any]) -> Callable[[Settings], Settings]:
    from pydantic import TypeAdapter, ValidationError

    from pagefleet.api.v1alpha1.autoscaling import AutoscalingSpec
    from pagefleet.api.v1alpha1.autoscaling_schedule import CHECK_TIME_ZONES
    from pagefleet.autoscaler.service_settings import under
    from pagefleet.autoscaler.settings import Settings

    names = {field.name for field in fields(Settings)} - {"speed"}
    if not (names - {"schedule"}) & content.keys():  # a name in both forms
        try:
            spec = AutoscalingSpec.model_validate(content, context={CHECK_TIME_ZONES: True})
        except ValidationError as error:
            raise UserMistake(f"--config {path}: {_first(error)}.") from error
        return lambda settings: under(spec, settings)
    if unknown := sorted(content.keys() - names):
        raise UserMistake(f"--config {path}: {unknown[0]} is no setting; write one of {', '.join(sorted(names))}.")
    try:
        given = TypeAdapter(Settings).validate_python({"speed": None, **content})
    except ValidationError as error:
        raise UserMistake(f"--config {path}: {_first(error)}.") from error
    if given.mistake is not None and "more than" not in given.mistake:
        raise UserMistake(f"--config {path}: {given.mistake}.")
    return lambda settings: replace(settings, **{name: getattr(given, name) for name in content})


def _first(error: Any) -> str:
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'autoscaling'}: {first['msg']}"


# ---- what is shown ----


def _show(name: str, totals: Totals) -> None:
    typer.echo(
        f"\n{name}: {totals.differing:,} of {totals.decisions:,} decisions differ; replica-hours "
        f"{totals.recorded_hours:.2f} recorded, {totals.replayed_hours:.2f} replayed; "
        f"most replicas {totals.recorded_most} recorded, {totals.replayed_most} replayed"
    )
    if not totals.differences:
        return
    rows = [("from", "to", "recorded", "replayed")]
    for end_s, moment in totals.differences[:MOST_ROWS]:
        rows.append((_time(moment.time_s), _time(end_s), _words(moment.recorded), _words(moment.replayed)))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        typer.echo("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if len(totals.differences) > MOST_ROWS:
        typer.echo(f"  and {len(totals.differences) - MOST_ROWS:,} more stretches: --json FILE has all")


def _words(decision: Decision) -> str:
    limit = f", held by {decision.limited_by}" if decision.limited_by else ""
    return f"{decision.desired} {decision.reason}{limit}"


def _time(seconds: float) -> str:
    if seconds >= EPOCH_S:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _as_json(totals: Totals) -> dict[str, Any]:
    return {
        "decisions": totals.decisions,
        "differing": totals.differing,
        "replica_hours": {"recorded": round(totals.recorded_hours, 4), "replayed": round(totals.replayed_hours, 4)},
        "most_replicas": {"recorded": totals.recorded_most, "replayed": totals.replayed_most},
        "differences": [
            {
                "from_s": moment.time_s,
                "to_s": end_s,
                "recorded": _decision_json(moment.recorded),
                "replayed": _decision_json(moment.replayed),
            }
            for end_s, moment in totals.differences
        ],
    }


def _decision_json(decision: Decision) -> dict[str, Any]:
    return {"desired": decision.desired, "reason": str(decision.reason), "limited_by": decision.limited_by}
