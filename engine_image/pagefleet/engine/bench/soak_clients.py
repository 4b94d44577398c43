"""The clients of a soak: each sends a request when its last one has ended, and all rest together now and then."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

import httpx

from pagefleet.engine.bench.soak_outcomes import Outcome, Result, Seen, result_of
from pagefleet.engine.bench.soak_requests import Sizes, SoakRequest, soak_request

DONE = "data: [DONE]"
ROUND_S = 30.0
REST_S = 5.0
"""The end of each round, in which nobody begins a request: the engine falls idle."""
REQUEST_TIMEOUT_S = 300.0
"""A machine that does much else is slow; a hang is for ever."""
LONGEST_RETRY_S = 16.0
"""A client that is told to come back waits as long as it is told, and twice as long each time that this was in vain."""
CHUNK_BYTES = 2**16


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the clients send, and for how long."""

    seed: int
    clients: int
    duration_s: float
    sizes: Sizes
    has_priorities: bool


def is_resting(elapsed_s: float) -> bool:
    """Tell whether nobody begins a request at this time."""
    return elapsed_s % ROUND_S >= ROUND_S - REST_S


async def run_clients(http: httpx.AsyncClient, load: Load, results: list[Result]) -> None:
    """Send requests until the time is over, and wait for the ends of those that run; results appear as they come."""
    numbers = itertools.count()
    started_s = time.monotonic()
    await asyncio.gather(*(_run_client(http, load, numbers, started_s, results) for _ in range(load.clients)))


async def _run_client(
    http: httpx.AsyncClient, load: Load, numbers: Iterator[int], started_s: float, results: list[Result]
) -> None:
    refusals = 0
    while (elapsed_s := time.monotonic() - started_s) < load.duration_s:
        if is_resting(elapsed_s):
            await asyncio.sleep(ROUND_S - elapsed_s % ROUND_S)
            continue
        number = next(numbers)
        request = soak_request(load.seed, number, load.sizes, has_priorities=load.has_priorities)
        result = replace(result_of(request, await send(http, request)), number=number)
        results.append(result)
        refusals = refusals + 1 if result.outcome is Outcome.BUSY else 0
        if refusals:
            wait_s = min(result.retry_after_s * 2 ** (refusals - 1), LONGEST_RETRY_S)
            await asyncio.sleep(min(wait_s, max(0.0, started_s + load.duration_s - time.monotonic())))


async def send(http: httpx.AsyncClient, request: SoakRequest) -> Seen:
    """Send one request, and read its answer to the end or until its client is to leave."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            if request.leaving != "while_waiting":
                return await _exchange(http, request)
            try:
                async with asyncio.timeout(request.seconds_before_leaving):
                    return await _exchange(http, request)
            except TimeoutError:
                return Seen(has_left=True)
    except TimeoutError:
        return Seen(failure=f"it had no end within {REQUEST_TIMEOUT_S:g} s")
    except (httpx.HTTPError, ValueError) as error:
        return Seen(failure=f"{type(error).__name__} {error}".strip())


async def _exchange(http: httpx.AsyncClient, request: SoakRequest) -> Seen:
    content = request.content()
    async with http.stream(
        "POST",
        request.path,
        content=content if request.declares_length else _chunks(content),
        headers={"Content-Type": "application/json"},
    ) as response:
        status, retry_after = response.status_code, response.headers.get("retry-after", "")
        if not request.is_stream or status != HTTPStatus.OK:
            await response.aread()
            return Seen(status=status, retry_after=retry_after, bodies=[response.json()])
        return await _read_events(response, request)


async def _read_events(response: httpx.Response, request: SoakRequest) -> Seen:
    events: list[dict[str, Any]] = []
    has_done_event = False
    async for line in response.aiter_lines():
        if line == DONE:
            has_done_event = True
        elif line:
            events.append(json.loads(line.removeprefix("data: ")))
            if request.leaving == "in_stream" and len(events) == request.events_before_leaving:
                return Seen(status=response.status_code, bodies=events, has_left=True)
    return Seen(status=response.status_code, bodies=events, has_done_event=has_done_event)


async def _chunks(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), CHUNK_BYTES):
        yield content[start : start + CHUNK_BYTES]
