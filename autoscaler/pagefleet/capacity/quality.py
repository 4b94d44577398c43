"""Whether rounded weights and caches may be chosen by themselves: what was measured of them, beside a limit.

A choice of formats is

1. plain       weights as the checkpoint has them and a cache of 16 bits or more: nothing to show
2. not run     nothing was measured for this model: chosen only where the user's allow-list names it
3. passed      its KL to float32 is within the limit: chosen as if the allow-list named it
4. failed      its KL is beyond the limit: chosen only where nothing else is left
"""

from dataclasses import dataclass
from enum import StrEnum

from pagefleet.capacity.errors import CannotPlan
from pagefleet.capacity.kv_formats import AUTO, KV_FORMATS
from pagefleet.capacity.weight_formats import weight_format

USUAL_MAX_KL_NATS = 0.03
"""int8 weights of a small model are at half of it, its int4 weights at fifteen times."""
_PLAIN_BITS = 16


class GateState(StrEnum):
    """Say what is known of a choice's answers."""

    PLAIN = "plain"
    NOT_RUN = "not run"
    PASSED = "passed"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class QualityResult:
    """Hold what `pagefleet bench quality` measured for one choice of a model."""

    weights: str
    kv_cache: str
    kl_nats: float
    """Mean KL(float32 || choice) of the predictions on a text."""


@dataclass(frozen=True, kw_only=True)
class FormatQuality:
    """Say what is known of one choice's answers."""

    weights: str
    kv_cache: str
    state: GateState
    kl_nats: float | None
    """None where nothing was measured, or need be."""
    max_kl_nats: float

    @property
    def words(self) -> str:
        """Say it in a few words, as evidence of a choice."""
        match self.state:
            case GateState.PLAIN:
                return "plain, needs no quality gate"
            case GateState.NOT_RUN:
                return "quality gate: not run"
            case state:
                against = "of at most" if state is GateState.PASSED else "above"
                return f"quality gate: {state}, KL {self.kl_nats:.2g} {against} {self.max_kl_nats:g} nats"

    @property
    def sentence(self) -> str:
        """Say it of the choice by name, and what the choice needs."""
        need = "needs quality gate" if self.state is GateState.NOT_RUN else self.words
        return f"weights {self.weights}, KV cache {self.kv_cache}: {need}"


@dataclass(frozen=True, kw_only=True)
class QualityGate:
    """Hold what was measured for one model, and what may be lost."""

    results: tuple[QualityResult, ...] = ()
    max_kl_nats: float = USUAL_MAX_KL_NATS

    def judge(self, weights: str, kv_cache: str, *, checkpoint: str | None) -> FormatQuality:
        """Return what is known of two formats, for a checkpoint quantized so; of several results the worst counts."""
        kl_nats: float | None = None
        if is_plain(weights, kv_cache, checkpoint=checkpoint):
            state = GateState.PLAIN
        else:
            kl_nats = max((one.kl_nats for one in self.results if _is_of(one, weights, kv_cache)), default=None)
            state = GateState.NOT_RUN if kl_nats is None else GateState.FAILED
            if kl_nats is not None and kl_nats <= self.max_kl_nats:
                state = GateState.PASSED
        return FormatQuality(
            weights=weights, kv_cache=kv_cache, state=state, kl_nats=kl_nats, max_kl_nats=self.max_kl_nats
        )


def check_gate(gate: QualityGate) -> None:
    """Refuse numbers that are none, and formats that there are not; raises CannotPlan."""
    for what, value in (("limit", gate.max_kl_nats), *(("result", one.kl_nats) for one in gate.results)):
        if not 0 <= value < float("inf"):
            raise CannotPlan(f"a KL {what} of {value:g} nats is none: write a number of 0 or more, such as 0.03")
    for one in gate.results:
        weight_format(one.weights)
        if one.kv_cache not in (AUTO, *KV_FORMATS):
            raise CannotPlan(f"KV cache {one.kv_cache} is unknown: write one of {', '.join((AUTO, *KV_FORMATS))}")


def is_plain(weights: str, kv_cache: str, *, checkpoint: str | None) -> bool:
    """Tell whether two formats keep a model's answers: a checkpoint quantized before is taken as it is published."""
    return (weight_format(weights).keeps_answers or weights == checkpoint) and is_plain_cache(kv_cache)


def is_plain_cache(name: str) -> bool:
    """Tell whether a cache format keeps at least what a model computes in."""
    return name == AUTO or min(KV_FORMATS[name].key_bits, KV_FORMATS[name].value_bits) >= _PLAIN_BITS


def _is_of(result: QualityResult, weights: str, kv_cache: str) -> bool:
    """Tell whether a result is about two formats; what plain caches differ by is far below what weights lose."""
    are_plain = is_plain_cache(result.kv_cache) and is_plain_cache(kv_cache)
    return result.weights == weights and (are_plain or result.kv_cache == kv_cache)
