"""`pagefleet bench soak`: all that a real server meets, for long; nothing may be lost, nothing may grow."""

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
from tqdm import tqdm

from pagefleet.api.capacity import CapacityReport, EnginePhase
from pagefleet.engine.bench.server_metrics import Growth
from pagefleet.engine.bench.server_process import ServerProcess, core_process_id
from pagefleet.engine.bench.setup import model_folder
from pagefleet.engine.bench.soak_clients import Load, run_clients, send
from pagefleet.engine.bench.soak_memory import memory_levels, warm_up_s
from pagefleet.engine.bench.soak_outcomes import Outcome, Result, result_of
from pagefleet.engine.bench.soak_report import Soaked, report_of, write_tables
from pagefleet.engine.bench.soak_requests import COMPLETIONS, SMALLEST_CONTEXT_TOKENS, Sizes, SoakRequest
from pagefleet.engine.bench.soak_samples import Sample, Sampler, capacity_numbers, memory_points
from pagefleet.engine.bench.soak_verdict import Aftermath, Capacity, broken_rules
from pagefleet.engine.bench.tables import check_writable, write_json
from pagefleet.engine.config import EngineConfig, ServerConfig
from pagefleet.engine.errors import StartupError

Say = Callable[[str], object]

SAMPLE_EVERY_S = 1.0
SETTLE_S = 60.0
"""How long the last sequences of clients that have left may take to go."""
STOP_S = 30.0
MOST_CHOICES = 3


@dataclass(frozen=True, kw_only=True)
class SoakOptions:
    """Say what to soak, and how long."""

    engine: EngineConfig
    """Settings of the server that is started; with no model it serves the preset."""
    preset: str = "S"
    url: str = ""
    """A running server instead."""
    admin_url: str = ""
    """Its admin port."""
    process_id: int | None = None
    """Its API process, when that runs on this machine; without, no memory is judged."""
    api_key: str | None = None
    duration_s: float = 900.0
    clients: int = 16
    seed: int = 0
    json_path: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Target:
    """The server that is soaked."""

    name: str
    url: str
    admin_url: str
    processes: Mapping[str, int]
    has_priorities: bool
    own: ServerProcess | None = None


@dataclass
class Record:
    """What is known of a running soak."""

    results: list[Result] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


def run_soak(options: SoakOptions, say: Say) -> dict[str, Any]:
    """Soak a server, print and return the report, whose `broken_rules` is empty when all is well.

    Raises StartupError with the sentence for the user, and EngineDead when the server goes away.
    """
    check_writable("--json", options.json_path)
    with _server(options) as target:
        record, growth, capacity, still_answers = asyncio.run(_soak(options, target))
        exit_code = None if target.own is None else _stop(target.own)
    warm_up = warm_up_s(options.duration_s)
    soaked = Soaked(
        server=target.name,
        duration_s=options.duration_s,
        warm_up_s=warm_up,
        clients=options.clients,
        seed=options.seed,
        results=record.results,
        samples=record.samples,
        memory={name: memory_levels(memory_points(record.samples, name), after_s=warm_up) for name in target.processes},
        aftermath=Aftermath(capacity=capacity, still_answers=still_answers, exit_code=exit_code),
    )
    capacities = [sample.capacity for sample in record.samples]
    report = report_of(soaked, broken_rules(record.results, growth, capacities, soaked.memory, soaked.aftermath))
    write_tables(soaked, say)
    write_json(report, options.json_path)
    return report


@contextlib.contextmanager
def _server(options: SoakOptions) -> Iterator[Target]:
    if options.url:
        processes = {}
        if options.process_id is not None:
            try:
                processes = {"API": options.process_id, "core": core_process_id(options.process_id)}
            except LookupError as error:
                raise StartupError(f"--pid {options.process_id} is no server's: {error}") from error
        yield Target(
            name=options.url,
            url=options.url.rstrip("/").removesuffix("/v1"),
            admin_url=options.admin_url.rstrip("/"),
            processes=processes,
            has_priorities=False,  # it may serve by arrival, which refuses them
        )
        return
    model = options.engine.model or str(model_folder("", options.preset))
    name = options.engine.model or f"preset {options.preset}"
    engine = msgspec.structs.replace(options.engine, model=model)
    server = ServerConfig(host="127.0.0.1", port=0, admin_port=0, served_model_name=name)
    with ServerProcess(engine, server, environment=os.environ) as own:
        own.wait_ready()
        yield Target(
            name=name,
            url=own.url,
            admin_url=own.admin_url,
            processes={"API": own.process.pid, "core": own.core_process_id()},
            has_priorities=engine.scheduling_policy == "priority",
            own=own,
        )


async def _soak(options: SoakOptions, target: Target) -> tuple[Record, Growth, Capacity, bool]:
    """Run the clients under a sampler; return what came, what the counters say, the last `/capacity`, and an answer."""
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    record = Record()
    async with (
        httpx.AsyncClient(base_url=target.url, headers=headers, limits=limits, timeout=None) as http,  # noqa: S113 - `send` has one
        httpx.AsyncClient(base_url=target.admin_url, timeout=SETTLE_S) as admin,
    ):
        sampler = Sampler(admin=admin, processes=target.processes)
        load = Load(
            seed=options.seed,
            clients=options.clients,
            duration_s=options.duration_s,
            sizes=_sizes(await sampler.report()),
            has_priorities=target.has_priorities,
        )
        before = await sampler.metrics()
        clients = asyncio.create_task(run_clients(http, load, record.results))
        try:
            await _sample_while(clients, sampler, record, options.duration_s)
        finally:
            clients.cancel()  # only what goes wrong finds them running
            await asyncio.gather(clients, return_exceptions=True)
        await clients
        capacity = await _settled(sampler)
        growth = Growth(before, await sampler.metrics())
        return record, growth, capacity, await _still_answers(http)


async def _sample_while(clients: asyncio.Task[None], sampler: Sampler, record: Record, duration_s: float) -> None:
    started_s = time.monotonic()
    with tqdm(total=round(duration_s), unit="s", disable=None) as bar:
        while not clients.done():
            at_s = time.monotonic() - started_s
            record.samples.append(await sampler.sample(at_s))
            lost = sum(result.outcome is Outcome.LOST for result in record.results)
            bar.set_postfix(requests=len(record.results), lost=lost, refresh=False)
            bar.update(min(round(duration_s), int(at_s)) - bar.n)
            next_s = started_s + len(record.samples) * SAMPLE_EVERY_S
            await asyncio.wait({clients}, timeout=max(0.0, next_s - time.monotonic()))


def _sizes(report: CapacityReport) -> Sizes:
    """Return what the server holds; raises StartupError when it takes no requests, or too short ones."""
    if report.phase != EnginePhase.READY or report.max_model_len is None or report.blocks_total is None:
        raise StartupError(f"the server takes no requests now: it is {report.phase.value} ({report.detail})")
    context_tokens = min(report.max_model_len, report.blocks_total * (report.block_size or 1))
    if context_tokens < SMALLEST_CONTEXT_TOKENS:
        raise StartupError(
            f"the server holds {context_tokens} tokens per request; the mixture needs {SMALLEST_CONTEXT_TOKENS}: "
            "for example --kv-cache-memory-bytes 12Mi"
        )
    return Sizes(context_tokens=context_tokens, most_choices=min(MOST_CHOICES, report.max_num_seqs or 1))


async def _settled(sampler: Sampler) -> Capacity:
    """Wait until nothing is in flight and return `/capacity`, or the last one that came in time."""
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        report = await sampler.report()
        is_idle = not (report.in_flight or report.running or report.queue_depth or report.blocks_active)
        if is_idle or time.monotonic() > deadline_s:
            return capacity_numbers(report)
        await asyncio.sleep(0.1)


async def _still_answers(http: httpx.AsyncClient) -> bool:
    request = SoakRequest(kind="afterwards", path=COMPLETIONS, body={"prompt": "hello", "max_tokens": 4})
    return result_of(request, await send(http, request)).outcome is Outcome.ANSWERED


def _stop(server: ServerProcess) -> int | None:
    """Send SIGTERM and return the exit code; when the server does not end, that of the signal that ends it."""
    server.terminate()
    try:
        return server.wait_exit(STOP_S)
    except subprocess.TimeoutExpired:
        server.process.kill()
        return server.process.wait()
