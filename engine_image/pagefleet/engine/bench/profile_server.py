"""The ladder of a profile at a server: loads over the OpenAI API, step times from the growth of its `/metrics`.

The time of a step is linear in what it computes, so the means over a load's steps are as good as single steps.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
import numpy as np

from pagefleet.capacity.step_fit import StepSample
from pagefleet.engine.bench.server_metrics import Growth, Samples, parse_metrics
from pagefleet.engine.bench.serving import completion_body, connect, first_model, send_request
from pagefleet.engine.bench.workload import SEED
from pagefleet.engine.errors import StartupError

STEP_SUM, STEP_COUNT = "pagefleet_step_time_seconds_sum", "pagefleet_step_time_seconds_count"
PREFILL_TOKENS = (16, 64, 256)


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


@dataclass(frozen=True)
class Load:
    """Ask for so many answers at once."""

    sequences: int
    prompt_tokens: int
    output_tokens: int


def measure_server(
    url: str, *, batches: Sequence[int], context: int, steps: int, vocabulary_size: int, api_key: str | None
) -> tuple[ServerFacts, list[StepSample]]:
    """Return what the server is and one sample for each load; raises StartupError with the user's sentence."""
    return asyncio.run(_measure(url, batches, context, steps, vocabulary_size, api_key))


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


async def _scrape(client: httpx.AsyncClient, url: str) -> Samples:
    try:
        answer = await client.get("/metrics")
        answer.raise_for_status()
        return parse_metrics(answer.text)
    except (httpx.HTTPError, ValueError) as error:
        raise StartupError(f"{url}/metrics cannot be read: {error}; a profile needs the engine's step times") from error
