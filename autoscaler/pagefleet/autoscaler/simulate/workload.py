"""Requests with their arrival times: generated, or made from a recorded trace."""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request as a client sends it."""

    time_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_hashes: tuple[int, ...] = ()
    """One number per full prefix block of `Workload.hash_block_tokens` tokens; equal numbers are equal prefixes."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Arrivals in order of time."""

    name: str
    arrivals: tuple[Arrival, ...]
    duration_s: float
    hash_block_tokens: int = 512

    @property
    def rate_per_s(self) -> float:
        """Return the mean rate of requests."""
        return len(self.arrivals) / self.duration_s


def repeated(workload: Workload, times: int, *, seed: int, jitter_s: float = 1.0) -> Workload:
    """Return every arrival and `times - 1` copies of it, all moved by up to `jitter_s`, copies with drawn lengths.

    Lengths of copies come from the same trace, so bursts and lengths stay real while the rate grows.
    """
    draws = random.Random(seed)  # noqa: S311 - reproducible draws
    arrivals = []
    for arrival in workload.arrivals:
        for copy in range(times):
            lengths = arrival if copy == 0 else draws.choice(workload.arrivals)
            time_s = min(max(0.0, arrival.time_s + draws.uniform(-jitter_s, jitter_s)), workload.duration_s)
            arrivals.append(
                Arrival(
                    time_s, lengths.prompt_tokens, lengths.output_tokens, arrival.prefix_hashes if copy == 0 else ()
                )
            )
    return Workload(
        name=f"{workload.name} x {times}",
        arrivals=tuple(sorted(arrivals, key=lambda arrival: arrival.time_s)),
        duration_s=workload.duration_s,
        hash_block_tokens=workload.hash_block_tokens,
    )


def from_rates(
    name: str,
    rates: Sequence[tuple[float, float]],
    lengths: Sequence[Arrival],
    *,
    seed: int,
    variation: float = 1.2,
) -> Workload:
    """Generate arrivals along stretches of (seconds, requests per second), with lengths drawn from `lengths`.

    Times between arrivals are gamma distributed with this coefficient of variation: 1 is a Poisson process.
    """
    draws = random.Random(seed)  # noqa: S311 - reproducible draws
    shape = 1 / variation**2
    arrivals, begin_s = [], 0.0
    due = draws.gammavariate(shape, 1 / shape)  # requests until the next arrival, of mean 1
    for seconds, rate_per_s in rates:
        passed_s = 0.0
        while rate_per_s > 0 and passed_s + due / rate_per_s <= seconds:
            passed_s += due / rate_per_s
            drawn = draws.choice(lengths)
            arrivals.append(Arrival(begin_s + passed_s, drawn.prompt_tokens, drawn.output_tokens))
            due = draws.gammavariate(shape, 1 / shape)
        due -= (seconds - passed_s) * rate_per_s
        begin_s += seconds
    return Workload(name=name, arrivals=tuple(arrivals), duration_s=begin_s)


def normal_lengths(
    count: int, *, prompt: tuple[float, float, int], output: tuple[float, float, int], seed: int
) -> list[Arrival]:
    """Draw lengths from normal distributions given as (mean, deviation, least)."""
    draws = random.Random(seed)  # noqa: S311 - reproducible draws

    def draw(mean: float, deviation: float, least: int) -> int:
        return max(least, round(draws.gauss(mean, deviation)))

    return [Arrival(0.0, draw(*prompt), draw(*output)) for _ in range(count)]


def lognormal_lengths(count: int, *, prompt_mean: float, output_mean: float, sigma: float, seed: int) -> list[Arrival]:
    """Draw lengths from log-normal distributions, as chats have them."""
    draws = random.Random(seed)  # noqa: S311 - reproducible draws

    def draw(mean: float) -> int:
        return max(1, round(draws.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)))

    return [Arrival(0.0, draw(prompt_mean), draw(output_mean)) for _ in range(count)]


def first_seconds(workload: Workload, seconds: float) -> Workload:
    """Return the arrivals of the first seconds alone."""
    kept: Iterable[Arrival] = (arrival for arrival in workload.arrivals if arrival.time_s < seconds)
    return Workload(
        name=workload.name,
        arrivals=tuple(kept),
        duration_s=min(seconds, workload.duration_s),
        hash_block_tokens=workload.hash_block_tokens,
    )
