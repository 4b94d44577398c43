"""`pagefleet simulate`: scaling policies on recorded or generated requests, in simulated time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import typer

from pagefleet.cli.errors import EXIT_FAILURE, UserMistake, require_extra

if TYPE_CHECKING:
    from pagefleet.autoscaler.decision_record import Record
    from pagefleet.autoscaler.schedule import ScheduledTime
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
    rates: Annotated[
        str | None,
        typer.Option(
            help="Generate chats: seconds:requests per second, such as 600:3,600:12, or a file of times and rates.",
            metavar="LIST|FILE",
            show_default=False,
        ),
    ] = None,
    prompt_tokens: Annotated[float, typer.Option(help="Mean prompt of --rates.")] = 1100,
    output_tokens: Annotated[float, typer.Option(help="Mean answer of --rates.")] = 200,
    router: Annotated[
        Literal["least-requests", "round-robin", "stale", "prefix"],
        typer.Option(help="How requests are placed; stale knows loads up to 5 s late, prefix knows cached prefixes."),
    ] = "least-requests",
    scrape_interval: Annotated[float, typer.Option(help="Seconds between two reports of a replica.")] = 5.0,
    scrape_delay: Annotated[float, typer.Option(help="Seconds that a report takes.")] = 0.0,
    scrape_loss: Annotated[float, typer.Option(help="Share of reports that get lost, 0 to 1.")] = 0.0,
    hint: Annotated[
        list[str] | None,
        typer.Option(
            help="Try ours also with replicas ready for a surge: seconds:replicas, such as 3600-5400:8.",
            metavar="FROM-TO:REPLICAS",
            show_default=False,
        ),
    ] = None,
    spare: Annotated[int, typer.Option(help="Try ours also with so many spare replicas.", show_default=False)] = 0,
    start_s: Annotated[
        float | None,
        typer.Option(help="Try ours also where a replica needs at most so many seconds to start.", show_default=False),
    ] = None,
    initial_replicas: Annotated[int, typer.Option(help="Replicas at the start of --trace or --rates.")] = 2,
    max_replicas: Annotated[int, typer.Option(help="Most replicas.")] = 40,
    jobs: Annotated[int, typer.Option(help="Processes.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of arrivals, lengths and start times.")] = 0,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the results here.", metavar="FILE")] = None,
    markdown_path: Annotated[
        Path | None, typer.Option("--markdown", help="Write the table here.", metavar="FILE")
    ] = None,
    plot_path: Annotated[Path | None, typer.Option("--plot", help="Draw the frontiers here (PNG).")] = None,
    log_path: Annotated[
        Path | None,
        typer.Option("--log", help="Write our decisions here, for `pagefleet replay`.", metavar="FILE"),
    ] = None,
) -> None:
    """Compare scaling policies on the same requests: % served within the objectives, and replica hours.

    The engine is a 70B model on four H100; 2 s to the first token, 100 ms between two; a replica needs 100 to 140 s to
    start. With --suite acceptance the exit code is 1 when a requirement is missed.
    """
    from pagefleet.autoscaler.simulate import acceptance, cases, frontier, readiness, report
    from pagefleet.autoscaler.simulate.trace_files import UnreadableTrace

    if plot_path is not None:
        require_extra("bench", ("matplotlib",))
    for flag, number in (
        ("--times", times),
        ("--initial-replicas", initial_replicas),
        ("--max-replicas", max_replicas),
        ("--jobs", jobs),
        ("--prompt-tokens", prompt_tokens),
        ("--output-tokens", output_tokens),
    ):
        if number < 1:
            raise UserMistake(f"{flag} {number:g} is too small: the smallest is 1, for example {flag} 2.")
    for flag, number, least, most, example in (
        ("--scrape-interval", scrape_interval, 0.1, 3600.0, "5"),
        ("--scrape-delay", scrape_delay, 0.0, 3600.0, "2"),
        ("--scrape-loss", scrape_loss, 0.0, 1.0, "0.05"),
        ("--spare", spare, 0, max_replicas, "1"),
        ("--start-s", 30.0 if start_s is None else start_s, 1.0, 3600.0, "30"),
    ):
        if not least <= number <= most:
            raise UserMistake(f"{flag} {number:g} is not {least:g} to {most:g}: write for example {flag} {example}.")
    if initial_replicas > max_replicas:
        raise UserMistake(
            f"--initial-replicas {initial_replicas} is more than --max-replicas {max_replicas}: "
            f"write --max-replicas {initial_replicas} or more."
        )
    hints = tuple(_hint(text, max_replicas) for text in hint or [])
    ready = readiness.Readiness(hints=hints, spare_replicas=spare, start_s=start_s)
    select = acceptance.acceptance_candidates if against == "field" else acceptance.quick_candidates
    points = {}
    log = None if log_path is None else log_path.open("w")
    try:
        chosen: Iterable[Case]
        if rates is not None:
            chosen = [
                cases.chats_case(
                    _stretches(rates),
                    prompt_tokens=prompt_tokens,
                    output_tokens=output_tokens,
                    initial_replicas=initial_replicas,
                    max_replicas=max_replicas,
                    seed=seed,
                )
            ]
        else:
            chosen = _cases(suite, traces, trace, case or [], times, initial_replicas, max_replicas, seed)
        for one in chosen:
            conditions = replace(
                one.conditions,
                scrape_interval_s=scrape_interval,
                scrape_delay_s=scrape_delay,
                scrape_loss=scrape_loss,
            )
            each = replace(one, conditions=conditions, router=router, readiness=ready)
            typer.echo(
                f"{each.name}: {len(each.workload.arrivals):,} requests in {each.workload.duration_s / 3600:.1f} h, "
                f"{each.workload.rate_per_s:.1f} a second"
            )
            points[each.name] = frontier.run_candidates(
                each,
                select,
                jobs=jobs,
                on_point=lambda point: typer.echo(f"  {acceptance.describe(point)}"),
                first=None if log is None else cases.our_candidate(each, log=_writer(log)),
            )
            lead_time_s = each.conditions.cold_start_s[1]
    except UnreadableTrace as error:
        raise UserMistake(str(error)) from error
    finally:
        if log is not None:
            log.close()
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


def _writer(log: TextIO) -> Callable[[Record], None]:
    """Return what writes records: the first of a case whole, the others by the hash of its settings."""
    from pagefleet.autoscaler.decision_record import hash_settings, write_record

    def write(record: Record) -> None:
        is_first = record.state is not None
        log.write(write_record(record, settings_hash=hash_settings(record.settings), with_settings=is_first) + "\n")

    return write


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


def _hint(text: str, max_replicas: int) -> ScheduledTime:
    from pagefleet.autoscaler.simulate.readiness import make_hint

    match = re.fullmatch(r"(\d{1,7})-(\d{1,7}):(\d{1,5})", text)
    begin_s, end_s, replicas = map(int, match.groups()) if match else (0, 0, 0)
    if not begin_s < end_s or replicas < 1:
        raise UserMistake(f"--hint {text} is no span with its replicas: write for example --hint 3600-5400:8.")
    if replicas > max_replicas:
        raise UserMistake(
            f"--hint {text} asks for more than --max-replicas {max_replicas}: write --max-replicas {replicas} or more."
        )
    return make_hint(begin_s, end_s, replicas)


def _stretches(rates: str) -> list[tuple[float, float]]:
    """Return the stretches of --rates; raises UserMistake, or UnreadableTrace of a file."""
    from pagefleet.autoscaler.simulate.trace_files import read_rates

    if Path(rates).is_file():
        return read_rates(Path(rates))
    try:
        found = [(float(seconds), float(rate)) for seconds, rate in (part.split(":") for part in rates.split(","))]
    except ValueError:
        found = []
    if not found or not all(0 < seconds < 1e7 and 0 <= rate < 1e5 for seconds, rate in found):
        raise UserMistake(f"--rates {rates} is neither a file nor stretches: write for example --rates 600:3,600:12.")
    if not any(rate for _, rate in found):
        raise UserMistake(f"--rates {rates} holds no request: write for example --rates 600:3,600:12.")
    return found


def _trace_folder(traces: Path | None) -> Path:
    if traces is None:
        raise UserMistake("--suite acceptance needs the public traces: write --traces DIR or set PAGEFLEET_TRACES.")
    if missing := [name for name in TRACE_NAMES if not (traces / name).is_file()]:
        raise UserMistake(f"--traces {traces} has no {missing[0]}: write the folder that holds the public traces.")
    return traces
