"""`pagefleet simulate`: scaling policies on recorded or generated requests, in simulated time."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pagefleet.cli.errors import EXIT_FAILURE, UserMistake, require_extra

if TYPE_CHECKING:
    from pagefleet.autoscaler.simulate.cases import Case

TRACE_NAMES = (
    "AzureLLMInferenceTrace_conv.csv",
    "AzureLLMInferenceTrace_code.csv",
    "servegen_m-large_rate_10min.csv",
    "mooncake_conversation_trace.jsonl",
)


def simulate(
    suite: Annotated[
        Literal["acceptance"] | None,
        typer.Option(help="The six cases that the policy must pass; needs --traces.", show_default=False),
    ] = None,
    traces: Annotated[
        Path | None,
        typer.Option(envvar="PAGEFLEET_TRACES", help="Folder of the public traces.", metavar="DIR", show_default=False),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="One trace: Azure's .csv or Mooncake's .jsonl.", metavar="FILE", show_default=False),
    ] = None,
    times: Annotated[int, typer.Option(help="Play every request of --trace so often, moved by up to a second.")] = 1,
    case: Annotated[list[str] | None, typer.Option(help="Only these cases of the suite.", show_default=False)] = None,
    against: Annotated[
        Literal["bounds", "field"],
        typer.Option(help="Compare with policies that know the future, or also with those of the field."),
    ] = "bounds",
    initial_replicas: Annotated[int, typer.Option(help="Replicas at the start of --trace.")] = 2,
    max_replicas: Annotated[int, typer.Option(help="Most replicas.")] = 40,
    jobs: Annotated[int, typer.Option(help="Processes.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of arrivals, lengths and start times.")] = 0,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the results here.", metavar="FILE")] = None,
    markdown_path: Annotated[
        Path | None, typer.Option("--markdown", help="Write the table here.", metavar="FILE")
    ] = None,
    plot_path: Annotated[Path | None, typer.Option("--plot", help="Draw the frontiers here (PNG).")] = None,
) -> None:
    """Compare scaling policies on the same requests: % served within the objectives, and replica hours.

    The engine is a 70B model on four H100; 2 s to the first token, 100 ms between two; a replica needs 100 to 140 s to
    start. With --suite acceptance the exit code is 1 when a requirement is missed.
    """
    from pagefleet.autoscaler.simulate import acceptance, frontier, report
    from pagefleet.autoscaler.simulate.trace_files import UnreadableTrace

    if plot_path is not None:
        require_extra("bench", ("matplotlib",))
    for flag, number in (
        ("--times", times),
        ("--initial-replicas", initial_replicas),
        ("--max-replicas", max_replicas),
        ("--jobs", jobs),
    ):
        if number < 1:
            raise UserMistake(f"{flag} {number} is too small: the smallest is 1, for example {flag} 2.")
    if initial_replicas > max_replicas:
        raise UserMistake(
            f"--initial-replicas {initial_replicas} is more than --max-replicas {max_replicas}: "
            f"write --max-replicas {initial_replicas} or more."
        )
    select = acceptance.acceptance_candidates if against == "field" else acceptance.quick_candidates
    points = {}
    try:
        for each in _cases(suite, traces, trace, case or [], times, initial_replicas, max_replicas, seed):
            typer.echo(
                f"{each.name}: {len(each.workload.arrivals):,} requests in {each.workload.duration_s / 3600:.1f} h, "
                f"{each.workload.rate_per_s:.1f} a second"
            )
            points[each.name] = frontier.run_candidates(
                each, select, jobs=jobs, on_point=lambda point: typer.echo(f"  {acceptance.describe(point)}")
            )
            lead_time_s = each.conditions.cold_start_s[1]
    except UnreadableTrace as error:
        raise UserMistake(str(error)) from error
    verdicts = acceptance.judge(points, lead_time_s=lead_time_s)
    table = report.as_markdown(points)
    typer.echo(f"\nServed within the objectives, % @ replica hours\n\n{table}\n")
    if suite is not None:
        for verdict in verdicts:
            mark = "met   " if verdict.is_met else "MISSED"
            typer.echo(f"{mark}  {verdict.case}: {verdict.requirement}: {verdict.found}")
    if json_path is not None:
        json_path.write_text(json.dumps({"seed": seed, **report.as_json(points, verdicts)}, indent=1) + "\n")
    if markdown_path is not None:
        markdown_path.write_text(table + "\n")
    if plot_path is not None:
        report.plot_frontiers(points, plot_path)
        typer.echo(f"picture: {plot_path}")
    if suite is not None and not all(verdict.is_met for verdict in verdicts):
        raise typer.Exit(EXIT_FAILURE)


def _cases(
    suite: str | None,
    traces: Path | None,
    trace: Path | None,
    names: list[str],
    times: int,
    initial_replicas: int,
    max_replicas: int,
    seed: int,
) -> Iterable[Case]:
    from pagefleet.autoscaler.simulate import cases

    if suite is not None:
        folder = _trace_folder(traces)
        if unknown := [name for name in names if name not in cases.CASE_NAMES]:
            raise UserMistake(
                f"--case {unknown[0]} is not in the suite: write one of {', '.join(map(repr, cases.CASE_NAMES))}."
            )
        return (each for each in cases.acceptance_cases(folder, seed=seed) if not names or each.name in names)
    if trace is not None:
        if not trace.is_file():
            raise UserMistake(f"--trace {trace} is no file: write the path of a .csv or .jsonl trace.")
        return [
            cases.trace_case(
                trace, times=times, initial_replicas=initial_replicas, max_replicas=max_replicas, seed=seed
            )
        ]
    return [cases.generated_case(seed=seed)]


def _trace_folder(traces: Path | None) -> Path:
    if traces is None:
        raise UserMistake("--suite acceptance needs the public traces: write --traces DIR or set PAGEFLEET_TRACES.")
    if missing := [name for name in TRACE_NAMES if not (traces / name).is_file()]:
        raise UserMistake(f"--traces {traces} has no {missing[0]}: write the folder that holds the public traces.")
    return traces
