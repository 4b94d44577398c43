"""`pagefleet bench serving`: requests to a running server at their own times, whether it keeps up or not."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
from tqdm import tqdm

from pagefleet.engine.bench.arrivals import Arrival, fit, poisson_arrivals, read_trace
from pagefleet.engine.bench.latencies import PERCENTILES, Slo, Timeline, summarize
from pagefleet.engine.bench.plot import Line, Panel, write_plot
from pagefleet.engine.bench.tables import check_writable, text_table, write_json
from pagefleet.engine.errors import StartupError

Say = Callable[[str], object]

DONE = "data: [DONE]"
SETUP_TIMEOUT_S = 30.0
STALL_TIMEOUT_S = 600.0
"""Without a byte for so long a request has failed; slow answers are waited for, they are what is measured."""


@dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """Say what to send where."""

    url: str
    """The server, with or without /v1."""
    model: str = ""
    """The first that the server lists when empty."""
    requests: int = 64
    rate_per_s: float = 4.0
    trace: Path | None = None
    """Takes the place of the Poisson process."""
    speed: float = 1.0
    """Plays a trace so many times faster."""
    vocabulary_size: int = 1000
    """Prompts are token ids below."""
    most_tokens: int = 768
    """Prompt and output of one request together; longer ones of a trace are cut."""
    slo: Slo
    api_key: str | None = None
    json_path: Path | None = None
    plot_path: Path | None = None


def run_serving(options: ServingOptions, say: Say) -> dict[str, object]:
    """Measure, print and return the report; raises StartupError with the sentence for the user."""
    check_writable("--json", options.json_path)
    check_writable("--plot", options.plot_path)
    if options.trace is None:
        planned = poisson_arrivals(options.requests, options.rate_per_s)
    else:
        planned = read_trace(options.trace, options.requests)
    arrivals = fit(planned, most_tokens=options.most_tokens, speed=options.speed if options.trace else 1.0)
    timelines = asyncio.run(_send_all(options, arrivals))
    report: dict[str, object] = {
        "url": options.url,
        "arrivals": str(options.trace) if options.trace else f"Poisson, {options.rate_per_s:g} requests/s",
        "cut_requests": sum(
            (a.prompt_tokens, a.output_tokens) != (b.prompt_tokens, b.output_tokens)
            for a, b in zip(planned, arrivals, strict=True)
        ),
        **summarize(timelines, options.slo),
    }
    _print(report, timelines, say)
    write_json(report, options.json_path)
    _plot(options, timelines, say)
    return report


async def _send_all(options: ServingOptions, arrivals: Sequence[Arrival]) -> list[Timeline]:
    async with connect(options.url, options.api_key) as client:
        model = options.model or await first_model(client, options.url)
        bodies = [
            completion_body(model, each.prompt(index, options.vocabulary_size), each.output_tokens)
            for index, each in enumerate(arrivals)
        ]
        started_s = time.perf_counter()
        with tqdm(total=len(arrivals), unit="req", disable=None) as bar:

            async def send(arrival: Arrival, body: dict[str, Any]) -> Timeline:
                await asyncio.sleep(started_s + arrival.at_s - time.perf_counter())
                timeline = await send_request(client, body, arrival.at_s, started_s)
                bar.update()
                return timeline

            return await asyncio.gather(*map(send, arrivals, bodies))


def connect(url: str, api_key: str | None) -> httpx.AsyncClient:
    """Return a client of a server that never waits for another request of its own."""
    return httpx.AsyncClient(
        base_url=url.rstrip("/").removesuffix("/v1"),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        timeout=httpx.Timeout(STALL_TIMEOUT_S, connect=SETUP_TIMEOUT_S),
    )


async def first_model(client: httpx.AsyncClient, url: str) -> str:
    """Return the first model that a server lists; raises StartupError when it does not answer."""
    try:
        answer = await client.get("/v1/models", timeout=SETUP_TIMEOUT_S)
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except httpx.HTTPStatusError as error:
        raise StartupError(
            f"--url {url} answers {error.response.status_code} for /v1/models; --api-key may be missing"
        ) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise StartupError(f"--url {url} does not answer: {reason}; for example --url http://127.0.0.1:8000") from error
    except (LookupError, TypeError, ValueError) as error:
        raise StartupError(f"--url {url} lists no model at /v1/models: is it an OpenAI API?") from error


def completion_body(model: str, prompt: list[int], output_tokens: int) -> dict[str, Any]:
    """Return a request for exactly so many greedy tokens, one chunk after another."""
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def send_request(client: httpx.AsyncClient, body: dict[str, Any], due_s: float, started_s: float) -> Timeline:
    """Send one request and note when each chunk comes; whatever goes wrong is the timeline's error."""
    times: list[float] = []
    usage: dict[str, Any] = {}
    error: str | None = None
    is_done = False
    try:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != HTTPStatus.OK:
                text = (await answer.aread()).decode(errors="replace")
                raise ValueError(f"{answer.status_code} {text[:200]}")
            async for line in answer.aiter_lines():
                if line == DONE:
                    is_done = True
                elif line.startswith("data: "):
                    chunk = json.loads(line.removeprefix("data: "))
                    error = error or (str(chunk["error"])[:200] if "error" in chunk else None)
                    if chunk.get("choices"):
                        times.append(time.perf_counter() - started_s)
                    usage = chunk.get("usage") or usage
    except (httpx.HTTPError, ValueError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    if error is None and not (is_done and times and usage):
        error = "the stream ended early"
    return Timeline(
        due_s=due_s,
        token_times_s=times,
        end_s=time.perf_counter() - started_s,
        output_tokens=int(usage.get("completion_tokens", 0)),
        cached_tokens=int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
        error=error,
    )


def _print(report: dict[str, object], timelines: Sequence[Timeline], say: Say) -> None:
    say(
        f"{report['url']}, {report['arrivals']}: {report['completed']} of {report['requests']} requests completed in "
        f"{report['duration_seconds']} s, {report['output_tokens_per_second']} output tokens/s"
        + (f", {report['cut_requests']} cut to fit" if report["cut_requests"] else "")
    )
    rows = []
    for name in ("ttft", "itl", "tpot", "e2e"):
        values = report[f"{name}_seconds"]
        assert isinstance(values, dict)  # noqa: S101 - made by summarize
        rows.append((name.upper(), *("-" if value is None else value * 1000 for value in values.values())))
    say(text_table(("ms", "mean", *(f"p{each}" for each in PERCENTILES)), rows))
    slo = report["slo"]
    assert isinstance(slo, dict)  # noqa: S101 - made by summarize
    say(
        f"goodput: {report['good_requests']} requests ({report['goodput_requests_per_second']}/s) with TTFT of at most "
        f"{slo['ttft_seconds']} s and {slo['tpot_seconds']} s for each further token"
    )
    errors = [each.error for each in timelines if each.error is not None]
    if errors:
        say(f"{len(errors)} failed, the first with {errors[0]}")


def _plot(options: ServingOptions, timelines: Sequence[Timeline], say: Say) -> None:
    whole = [each for each in timelines if each.error is None]
    panels = [
        _distribution("time to first token, s", [each.ttft_s for each in whole]),
        _distribution("between tokens, s", [gap for each in whole for gap in each.gaps_s]),
        _distribution("end to end, s", [each.e2e_s for each in whole]),
    ]
    write_plot(options.plot_path, panels, title=f"Latencies of {options.url}", say=say)


def _distribution(label: str, values: Sequence[float]) -> Panel:
    ordered = sorted(values)
    shares = [(index + 1) / len(ordered) for index in range(len(ordered))]
    return Panel(x_label=label, y_label="share of requests or gaps", lines=[Line("at most", ordered, shares)])
