"""The offline workload: requests of very different lengths, all there at the start, the same ones for every engine."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SEED = 7
PROMPT_TOKENS = (16, 512)
OUTPUT_TOKENS = (16, 256)
FIRST_TOKEN_ID = 300
"""Below are special tokens and single bytes in most vocabularies."""


@dataclass(frozen=True)
class BenchRequest:
    """Ask for exactly `output_tokens` greedy tokens after a prompt; end tokens do not end it."""

    prompt_token_ids: list[int]
    output_tokens: int

    @property
    def total_tokens(self) -> int:
        """Return the tokens of prompt and output."""
        return len(self.prompt_token_ids) + self.output_tokens


def log_uniform_requests(
    vocabulary_size: int,
    count: int,
    *,
    seed: int = SEED,
    prompt_tokens: tuple[int, int] = PROMPT_TOKENS,
    output_tokens: tuple[int, int] = OUTPUT_TOKENS,
) -> list[BenchRequest]:
    """Return requests whose lengths are log-uniform between the bounds, and whose prompts are random token ids."""
    generator = np.random.default_rng(seed)
    prompts = _log_uniform(generator, prompt_tokens, count)
    outputs = _log_uniform(generator, output_tokens, count)
    first = min(FIRST_TOKEN_ID, vocabulary_size // 2)
    return [
        BenchRequest(generator.integers(first, vocabulary_size, prompt).tolist(), output)
        for prompt, output in zip(prompts, outputs, strict=True)
    ]


def spread(requests: Sequence[BenchRequest], count: int) -> list[BenchRequest]:
    """Return `count` of the requests, evenly spaced, so that a part has about the lengths of the whole."""
    count = min(count, len(requests))
    return [requests[index * len(requests) // count] for index in range(count)]


def _log_uniform(generator: np.random.Generator, bounds: tuple[int, int], count: int) -> list[int]:
    low, high = np.log(bounds)
    numbers: list[int] = np.exp(generator.uniform(low, high, count)).round().astype(int).tolist()
    return numbers
