"""What the planner may try by itself to meet an objective."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from pagefleet.api.base import ApiModel, Kl
from pagefleet.api.v1alpha1.engine import KvCacheDtype, WeightQuantization


class TuningMode(StrEnum):
    """Off only plans whether the model fits; Recommend reports better settings; Auto gives them to new revisions."""

    OFF = "Off"
    RECOMMEND = "Recommend"
    AUTO = "Auto"


class TuningObjective(StrEnum):
    """What to improve: tokens per second (throughput), the longest step (latency), tokens per accelerator (cost), or
    the memory that a replica takes (memory)."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    COST = "cost"
    MEMORY = "memory"


class TuningAllowance(ApiModel):
    """Settings that may be chosen although they can change a model's answers. The defaults change none."""

    weights: Annotated[tuple[WeightQuantization, ...], Field(min_length=1)] = (WeightQuantization.NONE,)
    """Weight quantizations to choose from."""
    kv_cache: Annotated[tuple[KvCacheDtype, ...], Field(min_length=1)] = (KvCacheDtype.AUTO,)
    """KV-cache types to choose from."""


class QualityResult(ApiModel):
    """What one choice of weights and KV cache changes in the model's answers."""

    weights: WeightQuantization = WeightQuantization.NONE
    """Weight quantization that was measured."""
    kv_cache: KvCacheDtype = KvCacheDtype.AUTO
    """KV-cache type that was measured."""
    kl_nats: Kl
    """Mean KL divergence from float32 in nats, as pagefleet bench quality tells it."""


class QualityEvidence(ApiModel):
    """Measured quality of the model's rounded weights and KV caches. What is within the limit may be chosen."""

    model: Annotated[str, Field(max_length=2048)]
    """Model that was measured, the same as spec.model.uri: results of another say nothing."""
    max_kl_nats: Kl = 0.03
    """Largest KL divergence in nats with which a choice passes."""
    results: tuple[QualityResult, ...] = ()
    """What was measured; of several results for one choice the worst counts."""


class TuningSpec(ApiModel):
    """What the planner may try by itself. A knob set under `engine` is never changed."""

    mode: TuningMode = TuningMode.RECOMMEND
    """Off, Recommend or Auto, which fills what `engine` lacks. YAML reads a bare Off as false: write it in quotes."""
    objective: TuningObjective = TuningObjective.THROUGHPUT
    """What to improve: throughput, latency, cost, or memory, which takes as little of it as the load needs."""
    allow: TuningAllowance = Field(default=TuningAllowance())
    """Choices that may be tried although they can change answers."""
    quality: QualityEvidence | None = None
    """Measured choices: one that passed may be tried too, one that failed is not unless nothing else is left."""
