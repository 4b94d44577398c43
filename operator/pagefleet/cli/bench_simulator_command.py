"""`pagefleet bench simulator`: the simulator's engine beside the real one, on the same requests.

JSON: `makespan_seconds` and `mean_ttft_seconds` of `engine` and `simulator` and their `ratio`; `counts` of both; the
`fit` that the simulator computed with, measured before and after the requests.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from pagefleet.cli.bench_options import (
    BlockSize,
    Dtype,
    JsonPath,
    Model,
    Preset,
    Threads,
    bench_engine,
    check_counts,
    require_bench,
    run_measurement,
)
from pagefleet.cli.errors import EXIT_FAILURE, UserMistake

if TYPE_CHECKING:
    from pathlib import Path

    from pagefleet.autoscaler.simulate.alone import Played
    from pagefleet.engine.bench.timed_engine import TimedRun
    from pagefleet.engine.config import EngineConfig

MOST_TOKENS = 512
"""Prompt and output of one request together."""
COUNTS = ("steps", "computed_tokens", "kv_tokens_read", "sequence_steps")


@dataclass(frozen=True, kw_only=True)
class Check:
    """Say what to compare."""

    engine: EngineConfig
    preset: str
    requests: int = 200
    load: float = 4.0
    """Arrivals over what the engine serves."""
    within: float = 0.15
    most_tokens: int = MOST_TOKENS
    json_path: Path | None = None


def simulator(
    preset: Preset = "S",
    model: Model = "",
    requests: Annotated[int, typer.Option(help="Requests of a Poisson process.")] = 200,
    load: Annotated[float, typer.Option(help="How many times as fast they come as the engine serves them.")] = 4.0,
    within: Annotated[float, typer.Option(help="Share by which the two may differ.")] = 0.15,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences in one step at most.")] = 16,
    block_size: BlockSize = None,
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_path: JsonPath = None,
) -> None:
    """Compare the simulator's engine with the real one: when the last request ends, and the mean time to first token.

    The simulator gets the step times that the ladder of `pagefleet profile` measures before and after the requests.
    The exit code is 1 when the two differ by more than --within.
    """
    require_bench()
    check_counts(("--requests", requests), ("--max-num-seqs", max_num_seqs))
    if load <= 0 or within <= 0:
        raise UserMistake("--load and --within must be above 0: for example --load 4 --within 0.15.")
    engine = bench_engine(
        model=model,
        max_num_seqs=max_num_seqs,
        max_num_queued_reqs=requests,
        block_size=block_size,
        dtype=dtype,
        threads=threads,
    )
    check = Check(engine=engine, preset=preset, requests=requests, load=load, within=within, json_path=json_path)
    reports: list[dict[str, object]] = []
    run_measurement(lambda: reports.append(run_check(check)))
    if not reports[0]["is_within"]:
        raise typer.Exit(EXIT_FAILURE)


def run_check(check: Check) -> dict[str, object]:
    """Run the requests on both, print and return the report; raises StartupError or RequestRefused."""
    from tqdm import tqdm

    from pagefleet.autoscaler.simulate.alone import play_alone
    from pagefleet.autoscaler.simulate.replica import EngineModel
    from pagefleet.autoscaler.simulate.workload import Arrival
    from pagefleet.capacity.step_fit import StepFit, StepSample, fit_step_time
    from pagefleet.engine.bench.arrivals import fit, poisson_arrivals
    from pagefleet.engine.bench.tables import check_writable, write_json
    from pagefleet.engine.bench.timed_engine import TimedEngine

    check_writable("--json", check.json_path)
    real = TimedEngine(check.engine, preset=check.preset)
    info = real.info

    def simulated(samples: list[StepSample], rate_per_s: float) -> tuple[StepFit, Played]:
        found = fit_step_time(samples)
        model = EngineModel(
            step=found.step,
            kv_tokens=info.blocks_total * info.block_size,
            block_size=info.block_size,
            max_num_seqs=info.max_num_seqs,
            max_num_batched_tokens=info.max_num_batched_tokens,
        )
        arrivals = fit(poisson_arrivals(check.requests, rate_per_s), most_tokens=check.most_tokens)
        return found, play_alone(model, [Arrival(one.at_s, one.prompt_tokens, one.output_tokens) for one in arrivals])

    samples = real.ladder()
    _, at_once = simulated(samples, rate_per_s=1e9)
    rate_per_s = check.load * check.requests / at_once.makespan_s
    with tqdm(total=check.requests, unit="req", disable=None) as bar:
        ran = real.run(
            fit(poisson_arrivals(check.requests, rate_per_s), most_tokens=check.most_tokens), on_end=bar.update
        )
    samples += real.ladder()
    found, played = simulated(samples, rate_per_s)
    report = compare(ran, played, within=check.within)
    report |= {
        "requests": check.requests,
        "rate_per_second": rate_per_s,
        "fit": {**asdict(found.step), "r_squared": found.r_squared},
    }
    for line in words(report):
        typer.echo(line)
    write_json(report, check.json_path)
    return report


def compare(ran: TimedRun, played: Played, *, within: float) -> dict[str, object]:
    """Return both sides of each number, and whether the times are as near as they must be."""
    times = {
        name: {"engine": engine, "simulator": simulator, "ratio": simulator / engine}
        for name, engine, simulator in (
            ("makespan_seconds", ran.makespan_s, played.makespan_s),
            ("mean_ttft_seconds", ran.mean_ttft_s, played.mean_ttft_s),
        )
    }
    return {
        **times,
        "counts": {
            name: {"engine": getattr(ran, name), "simulator": getattr(played.counters, name)} for name in COUNTS
        },
        "is_within": all(abs(time["ratio"] - 1) <= within for time in times.values()),
    }


def words(report: dict[str, object]) -> list[str]:
    """Return the report in lines for people."""
    lines = []
    for name, text in (("makespan_seconds", "last end"), ("mean_ttft_seconds", "mean time to first token")):
        time = report[name]
        assert isinstance(time, dict)  # noqa: S101 - made by compare
        lines.append(
            f"{text}: engine {time['engine']:.2f} s, simulator {time['simulator']:.2f} s, ratio {time['ratio']:.3f}"
        )
    counts = report["counts"]
    assert isinstance(counts, dict)  # noqa: S101 - made by compare
    for name, both in counts.items():
        lines.append(f"{name.replace('_', ' ')}: engine {both['engine']}, simulator {both['simulator']}")
    return lines
