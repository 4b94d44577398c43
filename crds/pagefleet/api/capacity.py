"""The `/capacity` message: what an engine has, what it holds, and how far its start is.

The engine writes it; the autoscaler, the operator and `play` read it. Unknown is null, never 0: an autoscaler that took
an unknown queue for an empty one would scale down under load.
"""

from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class EnginePhase(StrEnum):
    """Where an engine is in its life. Only Ready takes new requests."""

    STARTING = "Starting"
    DOWNLOADING = "Downloading"
    LOADING = "Loading"
    READY = "Ready"
    DRAINING = "Draining"
    FAILED = "Failed"


class MemoryParts(BaseModel):
    """Where the memory of an accelerator goes, in bytes."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    weights_bytes: Count
    """Weights as loaded."""
    activation_bytes: Count
    """Most that the intermediate values of the widest step take."""
    runtime_bytes: Count
    """Interpreter, libraries and device context."""
    kv_cache_bytes: Count
    """All blocks."""
    graph_bytes: Count = 0
    """Captured decode steps."""

    @property
    def total_bytes(self) -> int:
        """The sum."""
        return self.weights_bytes + self.activation_bytes + self.runtime_bytes + self.kv_cache_bytes + self.graph_bytes


class MemoryReport(BaseModel):
    """What an engine's start measured beside what the planner predicts for its settings and its blocks."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    measured: MemoryParts
    """What the engine found."""
    predicted: MemoryParts | None = None
    """Null for a model that the planner cannot read."""
    drift_ratio: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Share by which the measured total is larger than the predicted one."""


class LatencyHistogram(BaseModel):
    """Latencies counted since start, by upper bound, as in Prometheus but not cumulated."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    bounds_s: tuple[Seconds, ...]
    """Upper bounds in seconds, rising. What is above the last one is counted after it."""
    counts: tuple[Count, ...]
    """One count for each bound, and one for what is above all."""

    @property
    def total(self) -> int:
        """All that were counted."""
        return sum(self.counts)

    def above(self, limit_s: float) -> float:
        """Return how many took longer than a limit in seconds; in the bucket that holds it, by its share."""
        above, lower_s = 0.0, 0.0
        for upper_s, count in zip(self.bounds_s, self.counts, strict=False):
            if lower_s >= limit_s:
                above += count
            elif upper_s > limit_s:
                above += count * (upper_s - limit_s) / (upper_s - lower_s)
            lower_s = upper_s
        return above + self.counts[-1]

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if len(self.counts) != len(self.bounds_s) + 1:
            raise ValueError(
                f"{len(self.bounds_s)} bounds need {len(self.bounds_s) + 1} counts, got {len(self.counts)}"
            )
        if any(upper_s <= lower_s for lower_s, upper_s in pairwise(self.bounds_s)):
            raise ValueError(f"bounds must rise, got {list(self.bounds_s)}")
        return self


class CapacityReport(BaseModel):
    """One answer of an engine's `/capacity`, snake_case JSON. Fields of a newer engine are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True, protected_namespaces=())

    phase: EnginePhase
    """Where the engine is in its life."""
    progress: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the present phase that is done, 0 to 1."""
    detail: str | None = None
    """The phase for people, such as `Downloading 63 %`, or why it failed."""
    model: str | None = None
    """Served model name."""

    blocks_total: Count | None = None
    """KV-cache blocks in all. Null until memory was measured."""
    blocks_active: Count | None = None
    """Blocks that a live sequence holds."""
    blocks_cached: Count | None = None
    """Blocks that only the prefix cache holds: evictable at once, so never part of occupancy."""
    blocks_free: Count | None = None
    """Empty blocks."""
    block_size: Annotated[int, Field(ge=1)] | None = None
    """Tokens in a block."""

    tokens_active: Count | None = None
    """Tokens of live sequences that are in the KV cache."""
    tokens_queued: Count | None = None
    """Prompt tokens of requests not yet admitted."""
    queue_depth: Count | None = None
    """Requests not yet admitted."""
    queue_age_s: Seconds | None = None
    """Age of the oldest request not yet admitted, in seconds; 0 for an empty queue."""
    running: Count | None = None
    """Sequences in the running batch."""

    preemptions_total: Count | None = None
    """Sequences that lost their blocks to others, since start."""
    prefix_query_tokens_total: Count | None = None
    """Prompt tokens looked up in the prefix cache, since start."""
    prefix_hit_tokens_total: Count | None = None
    """Prompt tokens found in the prefix cache, since start."""
    prompt_tokens_total: Count | None = None
    """Prompt tokens of admitted requests, since start."""
    generation_tokens_total: Count | None = None
    """Tokens generated, since start."""
    step_time_s: Seconds | None = None
    """Recent mean time of one engine step, in seconds."""

    requests_total: Count | None = None
    """Sequences that the engine took on, those that wait included, since start."""
    finished_total: Count | None = None
    """Of these, the ones that have ended, whatever ended them."""
    finished_output_tokens_total: Count | None = None
    """Tokens generated by those."""
    ttft: LatencyHistogram | None = None
    """Time to first token, from a request's arrival, since start."""
    time_per_output_token: LatencyHistogram | None = None
    """Mean time between tokens of each finished answer of two or more tokens, since start."""

    steps_total: Count | None = None
    """Engine steps since start."""
    step_seconds_total: Seconds | None = None
    """Time of these steps."""
    computed_tokens_total: Count | None = None
    """Prompt tokens that these steps computed; tokens that came from the prefix cache are not among them."""
    kv_tokens_read_total: Count | None = None
    """Cached tokens that decoding sequences read, summed over steps."""
    sequence_steps_total: Count | None = None
    """Decoding sequences, summed over steps."""

    draining: bool = False
    """True from the call of `/drain` on: new requests are refused, those in flight finish."""
    in_flight: Count | None = None
    """Requests that still wait for their last byte, queued ones included. A drain ends at 0."""
    startup_stage_seconds: dict[str, Seconds] = Field(default_factory=dict)
    """Seconds that each finished start-up stage took."""

    max_model_len: Annotated[int, Field(ge=1)] | None = None
    """Longest sequence, prompt and answer together, in tokens."""
    max_num_seqs: Annotated[int, Field(ge=1)] | None = None
    """Most sequences in one step."""
    max_num_batched_tokens: Annotated[int, Field(ge=1)] | None = None
    """Most tokens in one step."""
    memory_bytes: Count | None = None
    """What the accelerator has, or on a CPU the cgroup or machine."""
    weights_bytes: Count | None = None
    """Weights as loaded."""
    kv_cache_bytes: Count | None = None
    """All blocks."""
    memory: MemoryReport | None = None
    """Memory by part, measured and predicted. Null until it was measured."""
    config_hash: str | None = None
    """Hash of the engine's settings; equals the pod's config-hash annotation unless the pod is stale."""
    engine_version: str | None = None
    """Version of pagefleet in the engine image."""
    pod_uid: str | None = None
    """Kubernetes uid of the pod, so that a re-created namesake isn't taken for the old pod. Null outside a cluster."""
    monotonic_s: Seconds | None = None
    """The engine's monotonic clock when the report was made, in seconds: rates come from differences of this."""

    @property
    def occupancy(self) -> float | None:
        """Active over total blocks, 0 to 1; None where either is unknown or there are no blocks."""
        if self.blocks_active is None or not self.blocks_total:
            return None
        return self.blocks_active / self.blocks_total
