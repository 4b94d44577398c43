"""The capacity plan and the tuning evidence as `status` shows them."""

from pagefleet.api.base import Boolean, Fraction, NonNegativeInteger, Number, PositiveInteger, StatusModel, Timestamp
from pagefleet.api.v1alpha1.engine import BatchingMode, KvCacheDtype, WeightQuantization


class PlanFootprint(StatusModel):
    """Where the memory of one accelerator goes: predicted before the pod exists, measured by the engine."""

    memory_bytes: NonNegativeInteger | None = None
    """Memory of the accelerator, in bytes."""
    weights_bytes: NonNegativeInteger | None = None
    """Weights, in bytes."""
    activation_bytes: NonNegativeInteger | None = None
    """Peak of one step's intermediate values, in bytes."""
    overhead_bytes: NonNegativeInteger | None = None
    """Runtime, kernels and fragmentation, in bytes."""
    kv_cache_bytes: NonNegativeInteger | None = None
    """KV cache, in bytes."""
    bytes_per_token: NonNegativeInteger | None = None
    """KV cache of one token, in bytes."""
    blocks: NonNegativeInteger | None = None
    """KV-cache blocks."""
    kv_tokens: NonNegativeInteger | None = None
    """Tokens that the KV cache holds."""
    full_length_sequences: Number | None = None
    """Sequences of the longest length that fit at once; below 1 the longest one does not fit."""
    startup_seconds: Number | None = None
    """Time from the container's start to the first answer, in seconds."""


class PlanStepTime(StatusModel):
    """The four terms of an engine step, in seconds: their sum, each times its count, is what a step takes."""

    base_seconds: Number
    """Of any step."""
    prefill_token_seconds: Number
    """Of each prompt token computed."""
    kv_token_seconds: Number
    """Of each cached token that is read."""
    sequence_seconds: Number
    """Of each sequence that decodes."""
    source: str = "prior"
    """`prior` from data sheets, or `measured`."""


class PlanStatus(StatusModel):
    """The settings that replicas run with: the user's where set, else the planner's choice."""

    block_size: PositiveInteger | None = None
    """Tokens in one KV-cache block."""
    gpu_memory_utilization: Fraction | None = None
    """Share of the accelerator's memory that the engine uses."""
    max_model_len: PositiveInteger | None = None
    """Longest sequence, prompt and answer together, in tokens."""
    max_num_seqs: PositiveInteger | None = None
    """Most sequences in one step."""
    max_num_batched_tokens: PositiveInteger | None = None
    """Most tokens in one step."""
    weights: WeightQuantization | None = None
    """How weights are stored."""
    kv_cache: KvCacheDtype | None = None
    """How keys and values are stored."""
    prefix_caching: Boolean | None = None
    """Whether finished requests' blocks are kept for later requests."""
    batching: BatchingMode | None = None
    """When requests join a batch."""
    tensor_parallel_size: PositiveInteger | None = None
    """Accelerators that share each layer."""
    pipeline_parallel_size: PositiveInteger | None = None
    """Groups of layers."""
    predicted: PlanFootprint | None = None
    """What the planner expects."""
    measured: PlanFootprint | None = None
    """What the engine found at its start."""
    step_time: PlanStepTime | None = None
    """What a step is planned to take, from which the autoscaler derives what a replica serves; absent where unknown."""
    limit: str | None = None
    """What keeps a replica from serving more."""
    formats: tuple[str, ...] = ()
    """What may be chosen of weights and KV cache, each with what is known of its answers."""
    why: tuple[str, ...] = ()
    """One sentence for each choice, with its numbers."""


class TuningEvidence(StatusModel):
    """One measured comparison of a setting with the one in use."""

    knob: str
    """Setting that was compared, such as engine.blockSize."""
    value: str
    """Value that was tried."""
    baseline_value: str
    """Value in use."""
    metric: str
    """What was measured, with its unit, such as generation_tokens_per_second."""
    measured: Number
    """Measurement of the value that was tried."""
    baseline_measured: Number
    """Measurement of the value in use."""
    samples: PositiveInteger
    """Number of measurements behind each figure."""
    measured_at: Timestamp
    """When the comparison ended."""


class TuningStatus(StatusModel):
    """What tuning found."""

    # Never empty: an applied {} in place of entries that were applied before becomes null, which the schema refuses.
    recommended: dict[str, str] | None = None
    """Better settings by knob, such as engine.blockSize; absent where the present ones are best."""
    applied: Boolean = False
    """Whether replicas run the recommended settings."""
    message: str | None = None
    """A sentence for people: the gain, or why nothing changes."""
    evidence: tuple[TuningEvidence, ...] = ()
    """Comparisons behind the recommendation."""
