"""The ladder of a profile at a server: loads over the OpenAI API, step times from the growth of its `/metrics`.

The time of a step is linear in what it computes, so the means over a load's steps are as good as single steps.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import httpx
import numpy as np
from pydantic import ValidationError

from pagefleet.api.capacity import CapacityReport
from pagefleet.capacity.step_fit import StepSample
from pagefleet.capacity.text import bytes_text
from pagefleet.engine.bench.server_metrics import Growth, Samples, parse_metrics
from pagefleet.engine.bench.serving import completion_body, connect, first_model, send_request
from pagefleet.engine.bench.workload import SEED
from pagefleet.engine.errors import StartupError

STEP_SUM, STEP_COUNT = "pagefleet_step_time_seconds_sum", "pagefleet_step_time_seconds_count"
PREFILL_TOKENS = (16, 64, 256)
ADMIN_PORT = 9000
"""Where `/capacity` is by default."""
ADMIN_TIMEOUT_S = 5.0
"""A network policy may drop what is sent there."""


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """Hold what a server's metrics tell of it; None is not told."""

    model: str
    dtype: str
    kv_cache_dtype: str
    quantization: str
    device: str
    weight_bytes: float | None
    kv_bytes_per_token: float | None
    kv_tokens: int
    """Tokens that its cache holds."""
    max_model_len: int
    memory_bytes: int | None = None
    """What its accelerator has: only the admin port tells."""
    capacity_words: str = ""
    """What the admin port told, or why it told nothing."""


@dataclass(frozen=True)
class Load:
    """Ask for so many answers at once."""

    sequences: int
    prompt_tokens: int
    output_tokens: int


def measure_server(
    url: str,
    *,
    admin_url: str | None,
    batches: Sequence[int],
    context: int,
    steps: int,
    vocabulary_size: int,
    api_key: str | None,
) -> tuple[ServerFacts, list[StepSample]]:
    """Return what the server is and one sample for each load; raises StartupError with the user's sentence."""

    async def measure() -> tuple[ServerFacts, list[StepSample]]:
        facts, samples = await _measure(url, batches, context, steps, vocabulary_size, api_key)
        return await with_capacity(facts, admin_url or usual_admin_url(url)), samples

    return asyncio.run(measure())


async def _measure(
    url: str, batches: Sequence[int], context: int, steps: int, vocabulary_size: int, api_key: str | None
) -> tuple[ServerFacts, list[StepSample]]:
    async with connect(url, api_key) as client:
        try:
            model = await first_model(client, url)
        except StartupError as error:
            raise StartupError(str(error).replace("--url ", "")) from error
        facts = server_facts(model, await _scrape(client, url))
        random = np.random.default_rng(SEED)
        samples = []
        for load in ladder(batches, context, steps, facts.max_model_len):
            prompts = random.integers(0, vocabulary_size, (load.sequences, load.prompt_tokens)).tolist()
            samples.append(await _run(client, url, model, load, prompts))
        return facts, samples[1:]  # the first only warms up


def ladder(batches: Sequence[int], context: int, steps: int, max_model_len: int) -> list[Load]:
    """Return the loads; the first stands twice, because the first of all pays for what is made once."""
    most = max_model_len - steps - 2
    prompts = [Load(1, min(tokens, most), 1) for tokens in PREFILL_TOKENS]
    decodes = [
        Load(batch, min(tokens, most), steps + 1) for tokens in (max(1, context // 8), context) for batch in batches
    ]
    return [prompts[0], *prompts, *decodes]


async def _run(client: httpx.AsyncClient, url: str, model: str, load: Load, prompts: list[list[int]]) -> StepSample:
    before = await _scrape(client, url)
    started_s = time.perf_counter()
    timelines = await asyncio.gather(
        *(
            send_request(client, completion_body(model, prompt, load.output_tokens), 0.0, started_s)
            for prompt in prompts
        )
    )
    if error := next((one.error for one in timelines if one.error), None):
        raise StartupError(f"{url} refuses a request of the profile: {error}")
    return sample_of(load, Growth(before, await _scrape(client, url)), url)


def sample_of(load: Load, growth: Growth, url: str) -> StepSample:
    """Return the mean step of a load; raises StartupError when the server computed something else as well."""
    steps = growth(STEP_COUNT)
    computed = growth("pagefleet_generation_tokens_total")
    if computed != load.sequences * load.output_tokens or not steps:
        raise StartupError(
            f"{url} generated {computed:.0f} tokens while {load.sequences * load.output_tokens} were asked for: "
            "profile a server that has no other requests"
        )
    decodes = load.output_tokens - 1
    contexts = decodes * load.prompt_tokens + decodes * (decodes + 1) / 2
    prefilled = growth("pagefleet_prompt_tokens_total") - growth("pagefleet_prefix_cache_hits_total")
    return StepSample(
        prefill_tokens=prefilled / steps,
        kv_tokens=load.sequences * contexts / steps,
        sequences=load.sequences * decodes / steps,
        step_s=growth(STEP_SUM) / steps,
    )


def server_facts(model: str, samples: Samples) -> ServerFacts:
    """Read a scrape; raises StartupError when it is not this engine's."""
    labels = {name: dict(pairs) for (name, pairs) in samples}
    cache, config = labels.get("pagefleet_cache_config_info"), labels.get("pagefleet_config_info")
    if cache is None or config is None:
        raise StartupError("this server's /metrics have no pagefleet_config_info: only pagefleet's engine is profiled")
    kv_tokens = int(cache["num_gpu_blocks"]) * int(cache["block_size"])
    weight_bytes, kv_bytes = (
        samples.get(("pagefleet_memory_bytes", (("kind", "measured"), ("part", part))))
        for part in ("weights", "kv_cache")
    )
    return ServerFacts(
        model=model,
        dtype=config["dtype"],
        kv_cache_dtype=cache["cache_dtype"],
        quantization=config["quantization"],
        device=config["device"],
        weight_bytes=weight_bytes,
        kv_bytes_per_token=None if kv_bytes is None else kv_bytes / kv_tokens,
        kv_tokens=kv_tokens,
        max_model_len=int(config["max_model_len"]),
    )


def usual_admin_url(url: str) -> str:
    """Return where the admin port of a server is, unless it was started with another."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{ADMIN_PORT}"


async def with_capacity(facts: ServerFacts, admin_url: str) -> ServerFacts:
    """Return facts with what the admin port adds: the accelerator's memory, and how right its prediction was."""
    place = f"{admin_url.rstrip('/')}/capacity"
    try:
        async with httpx.AsyncClient(timeout=ADMIN_TIMEOUT_S) as client:  # without the key, which is the server's
            answer = await client.get(place)
            answer.raise_for_status()
            report = CapacityReport.model_validate_json(answer.content)
    except (httpx.HTTPError, httpx.InvalidURL, ValidationError):
        words = f"{place} cannot be read, so the accelerator's memory is not known: --admin-url names another place."
        return replace(facts, capacity_words=words)
    if report.model != facts.model or (report.blocks_total or 0) * (report.block_size or 0) != facts.kv_tokens:
        words = f"{place} is of another engine, so the accelerator's memory is not known: --admin-url names its own."
        return replace(facts, capacity_words=words)
    return replace(facts, memory_bytes=report.memory_bytes, capacity_words=_memory_words(report))


def _memory_words(report: CapacityReport) -> str:
    if report.memory_bytes is None:
        return "The engine does not tell its accelerator's memory."
    has = f"The engine's accelerator has {bytes_text(report.memory_bytes)}"
    if report.memory is None:
        return f"{has}."
    drift = report.memory.drift_ratio
    than = "" if drift is None else f", {abs(drift):.1%} {'more' if drift > 0 else 'less'} than predicted"
    return f"{has}, {bytes_text(report.memory.measured.total_bytes)} of it in use{than}."


async def _scrape(client: httpx.AsyncClient, url: str) -> Samples:
    try:
        answer = await client.get("/metrics")
        answer.raise_for_status()
        return parse_metrics(answer.text)
    except (httpx.HTTPError, ValueError) as error:
        raise StartupError(f"{url}/metrics cannot be read: {error}; a profile needs the engine's step times") from error
