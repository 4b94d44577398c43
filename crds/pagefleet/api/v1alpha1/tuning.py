"""What the planner may try by itself to meet an objective."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from pagefleet.api.base import ApiModel
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


class TuningSpec(ApiModel):
    """What the planner may try by itself. A knob set under `engine` is never changed."""

    mode: TuningMode = TuningMode.RECOMMEND
    """Off, Recommend or Auto, which fills what `engine` lacks. YAML reads a bare Off as false: write it in quotes."""
    objective: TuningObjective = TuningObjective.THROUGHPUT
    """What to improve: throughput, latency, cost, or memory, which takes as little of it as the load needs."""
    allow: TuningAllowance = Field(default=TuningAllowance())
    """Choices that may be tried although they can change answers."""
