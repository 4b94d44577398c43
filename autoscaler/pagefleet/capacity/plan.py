"""A capacity plan: what is chosen and why, what is predicted, what limits it, and what would change the answer."""

from dataclasses import dataclass

from pagefleet.capacity.memory import Footprint, Knobs
from pagefleet.capacity.objective import Objective
from pagefleet.capacity.quality import FormatQuality
from pagefleet.capacity.step_time import Service, StepTime


@dataclass(frozen=True)
class Choice:
    """Name one knob, its value and the reason of the value."""

    knob: str
    """As the engine's flag spells it."""
    value: str
    reason: str
    evidence: str = ""
    """What the reason rests on: `predicted` or `measured` times, a quality gate; empty where it is no estimate."""

    @property
    def sentence(self) -> str:
        """The reason with its evidence."""
        return f"{self.reason} (evidence: {self.evidence})" if self.evidence else self.reason


@dataclass(frozen=True)
class Alternative:
    """Name something else that could have been chosen, what it would bring, and what is in its way."""

    change: str
    effect: str
    obstacle: str


@dataclass(frozen=True, kw_only=True)
class CapacityPlan:
    """Say how a model fits an accelerator. Bytes are of one accelerator, rates of one replica."""

    model: str
    accelerator: str
    engine: str
    objective: Objective
    knobs: Knobs
    max_model_len: int
    blocks: int
    footprint: Footprint
    step: StepTime | None
    """None where the accelerator's speed is not known."""
    service: Service
    limit: str
    """What keeps a replica from serving more, in one sentence."""
    replicas: int | None
    """What the workload's rate needs; None without a rate or a speed."""
    choices: tuple[Choice, ...]
    formats: tuple[FormatQuality, ...]
    """What could be chosen of weights and caches, with what is known of its answers."""
    rejected: tuple[Alternative, ...]
    """What was allowed and is not taken."""
    near_misses: tuple[Alternative, ...]
    """What was not allowed, or is not there yet, and would serve more."""
    unavailable: tuple[str, ...]
    """What of the plan the engine cannot do yet; a plan to run has nothing here."""

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache holds."""
        return self.blocks * self.knobs.block_size

    @property
    def kv_cache_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.blocks * self.footprint.block_bytes

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that one token takes."""
        return self.footprint.block_bytes / self.knobs.block_size

    @property
    def full_length_sequences(self) -> float:
        """Sequences of the longest length that fit at once."""
        return self.kv_tokens / self.max_model_len

    @property
    def predicted_bytes(self) -> int:
        """What the replica takes of one accelerator in all."""
        return self.footprint.fixed_bytes + self.kv_cache_bytes

    def cost_per_million_output_tokens(self, price_per_hour: float) -> float | None:
        """Return the price of a million generated tokens at full load, for the price of one accelerator and hour."""
        if self.service.output_tokens_per_s is None:
            return None
        hourly = price_per_hour * self.knobs.tensor_parallel_size
        return hourly / (self.service.output_tokens_per_s * 3600) * 1e6
