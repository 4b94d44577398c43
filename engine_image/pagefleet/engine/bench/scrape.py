"""`pagefleet bench scrape`: what a look at `/capacity` costs, and whether steps beside a thousand of them are slower.

JSON: `idle` holds for `/livez` and `/capacity` of an idle server, asked in turns, the median milliseconds until the
answer and the mean CPU milliseconds of the API process; `turns` the core's milliseconds for each step, by the clock and
of its own CPU time, while it was scraped and while it was not.
"""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import httpx
import msgspec
import psutil
from tqdm import tqdm

from pagefleet.api.capacity import CapacityReport
from pagefleet.engine.bench.server_process import ServerProcess
from pagefleet.engine.bench.setup import context_length_of, model_folder
from pagefleet.engine.bench.tables import check_writable, write_json
from pagefleet.engine.config import EngineConfig, ServerConfig

Say = Callable[[str], object]

WARM_UP_S = 1.0
PROMPT_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class ScrapeOptions:
    """Say what to measure."""

    engine: EngineConfig
    preset: str = "S"
    sequences: int = 8
    """Requests that decode meanwhile."""
    scrapes: int = 1000
    """In all scraped turns together, and of the idle server."""
    rate_per_s: float = 50.0
    rounds: int = 4
    """Turns of each kind."""
    json_path: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Hold what one answer took."""

    wall_ms: float
    cpu_ms: float


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Hold what steps took while they were scraped, or were not."""

    is_scraped: bool
    steps: int
    step_ms: float
    step_cpu_ms: float


def run_scrape(options: ScrapeOptions, say: Say) -> dict[str, object]:
    """Start a server of one's own, measure, print and return the report; raises StartupError."""
    check_writable("--json", options.json_path)
    folder = model_folder(options.engine.model, options.preset)
    engine = msgspec.structs.replace(
        options.engine, model=str(folder), max_num_seqs=max(options.sequences, options.engine.max_num_seqs)
    )
    server = ServerConfig(host="127.0.0.1", port=0, admin_port=0)
    output_tokens = context_length_of(folder) - PROMPT_TOKENS
    with ServerProcess(engine, server, environment=os.environ) as own:
        report = measure_scrapes(own.wait_ready(), options, output_tokens, say)
    write_json(report, options.json_path)
    return report


def measure_scrapes(own: ServerProcess, options: ScrapeOptions, output_tokens: int, say: Say) -> dict[str, object]:
    """Measure a server that has nothing else to do, and print and return the report."""
    idle = asyncio.run(_idle(own, options))
    turns = asyncio.run(_busy(own, options, output_tokens))
    quiet, scraped = ([turn for turn in turns if turn.is_scraped is kind] for kind in (False, True))
    report: dict[str, object] = {
        "idle": {path: asdict(cost) for path, cost in idle.items()},
        "scrapes": options.scrapes,
        "step_ratio": median(turn.step_ms for turn in scraped) / median(turn.step_ms for turn in quiet),
        "step_cpu_ratio": median(turn.step_cpu_ms for turn in scraped) / median(turn.step_cpu_ms for turn in quiet),
        "turns": [asdict(turn) for turn in turns],
    }
    for path, cost in idle.items():
        say(f"idle, {path}: answered in {cost.wall_ms:.2f} ms, {cost.cpu_ms:.2f} ms of the API process's CPU time")
    say(
        f"{options.scrapes} scrapes at {options.rate_per_s:g}/s beside {options.sequences} sequences: steps take "
        f"{report['step_ratio']:.3f} times as long, {report['step_cpu_ratio']:.3f} times the core's CPU time"
    )
    return report


async def _idle(own: ServerProcess, options: ScrapeOptions) -> dict[str, Cost]:
    times_ms: dict[str, list[float]] = {"/livez": [], "/capacity": []}
    cpu_s = dict.fromkeys(times_ms, 0.0)
    api = psutil.Process(own.process.pid)
    async with httpx.AsyncClient(base_url=own.admin_url) as client:
        for path in tqdm([*times_ms] * options.rounds, unit="turn", disable=None):
            before_s = _cpu_s(api)
            for _ in range(options.scrapes // options.rounds):
                started_s = time.perf_counter()
                (await client.get(path)).raise_for_status()
                times_ms[path].append(1000 * (time.perf_counter() - started_s))
            cpu_s[path] += _cpu_s(api) - before_s
    return {
        path: Cost(wall_ms=median(times_ms[path]), cpu_ms=1000 * cpu_s[path] / len(times_ms[path])) for path in times_ms
    }


async def _busy(own: ServerProcess, options: ScrapeOptions, output_tokens: int) -> list[Turn]:
    """Return the turns, quiet and scraped by the pattern that cancels a drift: ABBA."""
    async with httpx.AsyncClient(timeout=None) as client:  # noqa: S113 - the requests last as long as the benchmark
        load = [
            asyncio.create_task(_keep_asking(client, own.url, [number + 1] * PROMPT_TOKENS, output_tokens))
            for number in range(options.sequences)
        ]
        try:
            await asyncio.sleep(WARM_UP_S)
            kinds = [bool((turn // 2 + turn) % 2) for turn in range(2 * options.rounds)]
            return [await _turn(own, client, options, is_scraped=kind) for kind in tqdm(kinds, disable=None)]
        finally:
            for task in load:
                task.cancel()
            await asyncio.gather(*load, return_exceptions=True)


async def _keep_asking(client: httpx.AsyncClient, url: str, prompt: list[int], output_tokens: int) -> None:
    body = {"prompt": prompt, "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
    while True:
        with suppress(httpx.TransportError):
            (await client.post(f"{url}/v1/completions", json=body)).raise_for_status()


async def _turn(own: ServerProcess, client: httpx.AsyncClient, options: ScrapeOptions, *, is_scraped: bool) -> Turn:
    core = psutil.Process(own.core_process_id())
    scrapes = options.scrapes // options.rounds
    before, core_s = await _report(own, client), _cpu_s(core)
    started_s = time.perf_counter()
    for number in range(scrapes):
        await asyncio.sleep(started_s + (number + 1) / options.rate_per_s - time.perf_counter())
        if is_scraped:
            await _report(own, client)
    core_s = _cpu_s(core) - core_s
    after = await _report(own, client)
    steps = (after.steps_total or 0) - (before.steps_total or 0)
    return Turn(
        is_scraped=is_scraped,
        steps=steps,
        step_ms=1000 * ((after.step_seconds_total or 0) - (before.step_seconds_total or 0)) / steps,
        step_cpu_ms=1000 * core_s / steps,
    )


async def _report(own: ServerProcess, client: httpx.AsyncClient) -> CapacityReport:
    return CapacityReport.model_validate_json((await client.get(f"{own.admin_url}/capacity")).content)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
