"""The time to the first token of requests whose prompts begin alike, in this process or at a server."""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from pagefleet.engine.bench.measured_run import Meter
from pagefleet.engine.bench.serving import completion_body, connect, first_model, send_request
from pagefleet.engine.bench.workload import FIRST_TOKEN_ID, SEED
from pagefleet.engine.core import EngineCore
from pagefleet.engine.errors import StartupError
from pagefleet.engine.messages import AddRequest
from pagefleet.engine.sampling_params import SamplingParameters


@dataclass(frozen=True, kw_only=True)
class PrefixPrompts:
    """Make two prompts with the same beginning and different ends, other ones for each pair."""

    shared_tokens: int
    own_tokens: int
    vocabulary_size: int

    def pair(self, index: int) -> tuple[list[int], list[int]]:
        """Return the prompts of a pair; their first own tokens differ."""
        low = min(FIRST_TOKEN_ID, self.vocabulary_size // 2)
        generator = np.random.default_rng((SEED, index))
        shared = generator.integers(low, self.vocabulary_size, self.shared_tokens).tolist()
        first_own = generator.choice(np.arange(low, self.vocabulary_size), 2, replace=False).tolist()
        ends = generator.integers(low, self.vocabulary_size, (2, self.own_tokens - 1)).tolist()
        first, second = ([*shared, own, *end] for own, end in zip(first_own, ends, strict=True))
        return first, second


@dataclass(frozen=True, kw_only=True)
class FirstToken:
    """Hold what one request took to its first token."""

    wall_s: float
    cpu_s: float | None
    """Own CPU time; None when a server computed."""
    cached_tokens: int
    """Prompt tokens found in the prefix cache."""


@dataclass(frozen=True)
class Pair:
    """Hold a request whose beginning nobody has computed, and the one after it with the same beginning."""

    miss: FirstToken
    hit: FirstToken


def median_s(requests: Sequence[FirstToken]) -> tuple[float, float | None]:
    """Return the median wall and CPU seconds."""
    cpu_s = [request.cpu_s for request in requests if request.cpu_s is not None]
    return median(request.wall_s for request in requests), median(cpu_s) if cpu_s else None


def pairs_in_process(core: EngineCore, prompts: PrefixPrompts, count: int) -> Iterator[Pair]:
    """Run pairs in a core and yield each; raises RequestRefused when a prompt does not fit."""
    for index in range(count):
        core.reset_prefix_cache()
        first, second = prompts.pair(index)
        yield Pair(_first_token(core, first), _first_token(core, second))


def _first_token(core: EngineCore, prompt: list[int]) -> FirstToken:
    outputs = []
    sampling = SamplingParameters(max_tokens=1, temperature=0.0, ignore_eos=True)
    with Meter() as meter:
        core.add_all([AddRequest(request_id="prefix", prompt_token_ids=prompt, sampling=sampling)])
        for step in core.steps():
            outputs += step.outputs
    return FirstToken(wall_s=meter.wall_s, cpu_s=meter.own_cpu_s, cached_tokens=outputs[0].cached_tokens or 0)


def blocks_at_first_tokens(core: EngineCore, prompt: list[int], choices: int) -> tuple[int, int]:
    """Return the blocks in use after the first token of all choices, and after the second: then each has written."""
    sampling = SamplingParameters(max_tokens=3, n=choices, ignore_eos=True)
    core.add_all([AddRequest(request_id="choices", prompt_token_ids=prompt, sampling=sampling)])
    blocks = [step.state.blocks_active for step in core.steps() if step.outputs]
    return blocks[0], blocks[1]


def pairs_over_http(
    url: str, prompts: PrefixPrompts, count: int, *, api_key: str | None, on_pair: Callable[[], object]
) -> list[Pair]:
    """Send pairs to a server, one request after another; raises StartupError when one fails.

    Each pair has a cache salt of its own, so that nothing is found but what the pair itself has left.
    """
    return asyncio.run(_send_pairs(url, prompts, count, api_key, on_pair))


async def _send_pairs(
    url: str, prompts: PrefixPrompts, count: int, api_key: str | None, on_pair: Callable[[], object]
) -> list[Pair]:
    pairs = []
    async with connect(url, api_key) as client:
        model = await first_model(client, url)
        for index in range(count):
            salt = uuid.uuid4().hex
            times = []
            for prompt in prompts.pair(index):
                body = {**completion_body(model, prompt, output_tokens=1), "cache_salt": salt}
                timeline = await send_request(client, body, 0.0, time.perf_counter())
                if timeline.error is not None:
                    raise StartupError(f"--url {url} fails on a prompt of {len(prompt)} tokens: {timeline.error}")
                times.append(FirstToken(wall_s=timeline.ttft_s, cpu_s=None, cached_tokens=timeline.cached_tokens))
            pairs.append(Pair(*times))
            on_pair()
    return pairs
