"""The time that a run could have taken on this machine. Pure.

    ideal = sum over steps of max(FLOP / GEMM rate, weight bytes / stream rate) + KV bytes / stream rate

FLOP are those of the matrix products: 2 for each weight of the body and row, 2 for each weight of the head and sampled
row. Weights are read once a step, behind the computation when that is longer. A new token of a decode reads keys and
values of all tokens before it, a prompt those of itself once. Attention's own arithmetic, norms, sampling and Python
count as nothing, so the share reached is never flattered by them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pagefleet.engine.bench.workload import BenchRequest


@dataclass(frozen=True)
class MachineRates:
    """Hold the best rates seen, with the threads that torch has."""

    gemm_flop_per_s: float
    stream_bytes_per_s: float

    def best_of(self, other: "MachineRates") -> "MachineRates":
        """Return the higher of each rate: a disturbed measurement is only ever too low."""
        return MachineRates(
            max(self.gemm_flop_per_s, other.gemm_flop_per_s), max(self.stream_bytes_per_s, other.stream_bytes_per_s)
        )


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """Hold what a step of a dense decoder multiplies and reads."""

    body_parameters: int
    """Of all matrices that each row meets: neither the embedding nor the head."""
    head_parameters: int
    bytes_per_parameter: int
    kv_bytes_per_token: int

    @property
    def weight_bytes(self) -> int:
        """Return the bytes that a step reads whatever its batch."""
        return (self.body_parameters + self.head_parameters) * self.bytes_per_parameter


@dataclass(frozen=True)
class StepRows:
    """Count one step's rows."""

    tokens: int
    sampled: int


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Hold the parts of the ideal time, in seconds."""

    products_s: float
    """Of computing the products alone."""
    exposed_weights_s: float
    """Of reading weights in steps with too few rows to hide it."""
    kv_s: float

    @property
    def ideal_s(self) -> float:
        """Return the sum."""
        return self.products_s + self.exposed_weights_s + self.kv_s


def roofline(
    sizes: ModelSizes, steps: Iterable[StepRows], requests: Iterable[BenchRequest], rates: MachineRates
) -> Roofline:
    """Return the ideal time of a run that took these steps for these requests."""
    weights_s = sizes.weight_bytes / rates.stream_bytes_per_s
    products_s = exposed_s = 0.0
    for step in steps:
        flop = 2 * (sizes.body_parameters * step.tokens + sizes.head_parameters * step.sampled)
        step_s = flop / rates.gemm_flop_per_s
        products_s += step_s
        exposed_s += max(0.0, weights_s - step_s)
    kv_bytes = sizes.kv_bytes_per_token * sum(map(kv_tokens_read, requests))
    return Roofline(products_s=products_s, exposed_weights_s=exposed_s, kv_s=kv_bytes / rates.stream_bytes_per_s)


def kv_tokens_read(request: BenchRequest) -> int:
    """Return the tokens whose keys and values one request reads: its prompt once, then its context at each decode."""
    prompt = len(request.prompt_token_ids)
    decodes = request.output_tokens - 1  # the prompt's own step samples the first
    return prompt + decodes * prompt + decodes * (decodes + 1) // 2
