"""When requests arrive and how long they are: a Poisson process, or a trace file. Pure but for reading the file.

Traces: Azure's CSV (`TIMESTAMP,ContextTokens,GeneratedTokens`) and Mooncake's JSONL (`timestamp` in milliseconds,
`input_length`, `output_length`, `hash_ids` of 512-token prompt blocks that begin alike).
"""

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path

import numpy as np

from pagefleet.engine.bench.workload import SEED, log_uniform_requests
from pagefleet.engine.errors import StartupError

HASH_BLOCK_TOKENS = 512
FIRST_TOKEN_ID = 300


@dataclass(frozen=True)
class Arrival:
    """Send one request at a time after the start."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_hashes: tuple[int, ...] = ()
    """Names of the prompt's blocks of 512 tokens; equal names mean equal tokens."""

    def prompt(self, index: int, vocabulary_size: int) -> list[int]:
        """Return token ids: random ones of request `index`, and of each named block those that its name always gets."""
        low = min(FIRST_TOKEN_ID, vocabulary_size // 2)
        if not self.prefix_hashes:
            return _tokens((1, index), low, vocabulary_size, self.prompt_tokens)
        blocks = (_tokens((2, name), low, vocabulary_size, HASH_BLOCK_TOKENS) for name in self.prefix_hashes)
        return [token for block in blocks for token in block][: self.prompt_tokens]


def poisson_arrivals(count: int, rate_per_s: float, *, seed: int = SEED) -> list[Arrival]:
    """Return the offline workload's lengths at the times of a Poisson process."""
    requests = log_uniform_requests(2, count, seed=seed)  # of the lengths alone: the server has another vocabulary
    gaps = np.random.default_rng(seed).exponential(1 / rate_per_s, count)
    times = np.cumsum(gaps) - gaps[0]
    return [
        Arrival(float(at_s), len(request.prompt_token_ids), request.output_tokens)
        for at_s, request in zip(times, requests, strict=True)
    ]


def read_trace(path: Path, count: int) -> list[Arrival]:
    """Return the first `count` requests of a trace, the first at 0 s; raises StartupError that names the line."""
    try:
        with path.open(newline="") as lines:
            parse = _mooncake if path.suffix == ".jsonl" else _azure
            arrivals = list(islice(parse(lines, path), count))
    except OSError as error:
        raise StartupError(f"--trace {path} cannot be read: {error.strerror}") from error
    if not arrivals:
        raise StartupError(f"--trace {path} holds no request; use Azure's CSV or Mooncake's JSONL")
    start_s = min(arrival.at_s for arrival in arrivals)
    return sorted((replace(each, at_s=each.at_s - start_s) for each in arrivals), key=lambda each: each.at_s)


def fit(arrivals: Iterable[Arrival], *, most_tokens: int, speed: float = 1.0) -> list[Arrival]:
    """Return arrivals `speed` times as dense, outputs and then prompts cut so that both fit `most_tokens` together."""
    fitted = []
    for arrival in arrivals:
        output = max(1, min(arrival.output_tokens, most_tokens // 2))
        prompt = max(1, min(arrival.prompt_tokens, most_tokens - output))
        fitted.append(replace(arrival, at_s=arrival.at_s / speed, prompt_tokens=prompt, output_tokens=output))
    return fitted


def _azure(lines: Iterable[str], path: Path) -> Iterator[Arrival]:
    for number, row in enumerate(csv.DictReader(lines), start=2):
        try:
            # Seven digits of a second: one more than datetime reads.
            at_s = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            yield Arrival(at_s, int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        except (KeyError, TypeError, ValueError) as error:
            raise StartupError(
                f"--trace {path} line {number} is not Azure's: write TIMESTAMP,ContextTokens,GeneratedTokens as in "
                "2023-11-16 18:15:46.6805900,374,44"
            ) from error


def _mooncake(lines: Iterable[str], path: Path) -> Iterator[Arrival]:
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            yield Arrival(
                row["timestamp"] / 1000,
                int(row["input_length"]),
                int(row["output_length"]),
                tuple(int(name) for name in row.get("hash_ids", ())),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StartupError(
                f'--trace {path} line {number} is not Mooncake\'s: write {{"timestamp": 0, "input_length": 374, '
                '"output_length": 44, "hash_ids": [0]}'
            ) from error


def _tokens(seed: tuple[int, int], low: int, high: int, count: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(low, high, count).tolist()
    return tokens
