"""What the API process and the core process say to each other: msgpack over ZeroMQ, never pickle.

The life of a request on the wire: `AddRequest` → `Accepted` or `Refused` → `RequestOutput` in one `StepOutputs` per
step, the last one with a finish reason. `AbortRequests` ends it early; an aborted request gets no further output.
"""

from typing import Literal

import msgspec

from pagefleet.engine.logprobs import TokenLogprobs
from pagefleet.engine.sampling_params import FinishReason, SamplingParameters


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages: a type tag travels with the fields."""


# ---- to the core ----------------------------------------------------------------------------------------------------


class AddRequest(Message, frozen=True, kw_only=True):
    """Ask for `sampling.choices` choices of one prompt."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParameters
    cache_salt: str | None = None
    """Only requests with the same salt share cached blocks."""
    priority: int = 0
    """Smaller is admitted earlier, where the engine's scheduling policy is `priority`."""
    arrival_s: float | None = None
    """When the request came in, on this machine's monotonic clock; None for when the core gets it."""


class AbortRequests(Message, frozen=True, kw_only=True):
    """Forget these requests and free their blocks before the next step; unknown ids are ignored."""

    request_ids: list[str]


class AbortChoice(Message, frozen=True, kw_only=True):
    """End one choice of a request and leave the others alone; unknown ones are ignored."""

    request_id: str
    index: int


class Shutdown(Message, frozen=True, kw_only=True):
    """End the core process at once."""


ToCore = AddRequest | AbortRequests | AbortChoice | Shutdown


# ---- from the core --------------------------------------------------------------------------------------------------


StartupStage = Literal["import", "download", "load", "measure", "allocate", "warm_up"]


class StartupProgress(Message, frozen=True, kw_only=True):
    """Say which start-up stage runs now."""

    stage: StartupStage
    fraction: float | None = None
    """Share of the stage that is done, 0 to 1; None when unknown."""


class MemoryParts(msgspec.Struct, frozen=True, kw_only=True):
    """Split the memory of the device that the engine takes, in bytes."""

    weights_bytes: int
    activation_bytes: int
    """Most that the values between two layers, logits and sampling take in the widest step."""
    runtime_bytes: int
    """Interpreter, libraries and device context."""
    kv_cache_bytes: int
    """All blocks, whether in use or not."""
    graph_bytes: int = 0
    """Captured decode steps, on a GPU."""

    @property
    def total_bytes(self) -> int:
        """Return the sum."""
        return self.weights_bytes + self.activation_bytes + self.runtime_bytes + self.kv_cache_bytes + self.graph_bytes


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """Compare what the planner predicts for these settings and this many blocks with what the start measured."""

    measured: MemoryParts
    predicted: MemoryParts | None
    """None for a model that the planner cannot read."""

    @property
    def drift_ratio(self) -> float | None:
        """Return by which share the measured total is larger than the predicted one."""
        if self.predicted is None:
            return None
        return self.measured.total_bytes / self.predicted.total_bytes - 1


class CoreReady(Message, frozen=True, kw_only=True):
    """Say that a real forward pass has run and what this engine can hold."""

    model: str
    architecture: str
    model_impl: str
    """Whose code computes the model: `native` or `transformers`."""
    device: str
    dtype: str
    kv_cache_dtype: str
    """A dtype, or the name of a packed format."""
    attention_backend: str
    linear_backend: str
    quantization: str
    """Of the weights: `none`, `int8` or `int4`, or what the checkpoint was quantized with."""
    vocabulary_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    plain_slots: int
    """Blocks of a packed cache that can be plain at the same time; 0 where the cache is not packed."""
    blocks_total: int
    batching: str
    scheduling_policy: str
    enable_prefix_caching: bool
    block_bytes: int
    """Of one block over all layers, packed where the cache is."""
    kv_cache_bytes: int
    weight_bytes: int
    memory_limit_bytes: int
    memory: MemoryReport | None = None
    gpu_memory_utilization: float
    eos_token_ids: list[int]
    stage_seconds: dict[str, float]
    config_hash: str


class StartupFailed(Message, frozen=True, kw_only=True):
    """Say in one sentence why the core cannot start."""

    message: str


class Accepted(Message, frozen=True, kw_only=True):
    """Say that the request waits or runs now."""

    request_id: str


class Refused(Message, frozen=True, kw_only=True):
    """Say why a request is not taken: `retry_after_s` is None when it can never fit."""

    request_id: str
    message: str
    reason: str = ""
    """Which bound of the queue is reached: `queue_requests`, `queue_tokens` or `queue_ttft`."""
    retry_after_s: int | None = None
    parameter: str | None = None
    """The request's field that is wrong, of one that can never fit."""
    code: str | None = None
    """OpenAI's machine-readable reason, of one that can never fit."""


class RequestOutput(Message, frozen=True, kw_only=True):
    """Carry the new tokens of one sequence."""

    request_id: str
    index: int = 0
    """Which of the request's choices this is; each ends with its own finish reason."""
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    """The stop token that ended the sequence, when it was one of the request's own and not an end token."""
    queue_time_s: float | None = None
    """On the first output: seconds from arrival to the first scheduled token."""
    prefill_time_s: float | None = None
    """On the first output: seconds from the first scheduled token to the first sampled one."""
    preemptions: int = 0
    """On the last output: how often the sequence was preempted."""
    cached_tokens: int | None = None
    """On the first output: prompt tokens that were found in the prefix cache."""
    logprobs: list[TokenLogprobs] | None = None
    """Scores of the new tokens, for a request that asked."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """On the first output: scores of the prompt tokens from the second on, for a request that asked."""


class CoreState(Message, frozen=True, kw_only=True):
    """Describe the core after its latest step. All numbers are exact at `monotonic_s`."""

    blocks_total: int
    blocks_active: int
    blocks_cached: int
    blocks_free: int
    tokens_active: int
    """Tokens whose keys and values are in active blocks."""
    running: int
    """Requests of which a sequence runs."""
    queue_depth: int
    """Requests of which none does."""
    tokens_queued: int
    waiting_by_reason: dict[str, int]
    """Sequences that the latest step left waiting, by what for."""
    queue_age_s: float | None
    """Age of the oldest request that waits; None when none does."""
    preemptions_total: int
    prompt_tokens_total: int
    """Prompt tokens of the requests of which a sequence has run."""
    prefix_query_tokens_total: int
    """Prompt tokens looked up in the prefix cache."""
    prefix_hit_tokens_total: int
    """Prompt tokens found there."""
    steps_total: int
    step_seconds_total: float
    computed_tokens_total: int
    """Tokens of prompts, and of what preempted sequences had generated, that steps computed."""
    kv_tokens_read_total: int
    """Tokens in the cache before each step, of the sequences that decode in it, summed over steps."""
    sequence_steps_total: int
    """Sequences that decode, summed over steps."""
    step_time_s: float | None
    """Duration of the latest step; None before the first."""
    step_tokens: int
    """Tokens that the latest step computed."""
    memory_used_bytes: int
    monotonic_s: float


class BlockResidency(msgspec.Struct, frozen=True, kw_only=True):
    """Tell how long blocks stayed in the prefix cache, one number per block and event, in seconds."""

    lifetimes_s: list[float] = []
    """Of blocks removed: since they were stored."""
    idle_times_s: list[float] = []
    """Of blocks removed: since their last use."""
    reuse_gaps_s: list[float] = []
    """Of blocks hit: since their use before."""


class StepOutputs(Message, frozen=True, kw_only=True):
    """Carry what one step produced, or (with no outputs) only the state."""

    outputs: list[RequestOutput]
    state: CoreState
    residency: BlockResidency = BlockResidency()


FromCore = StartupProgress | CoreReady | StartupFailed | Accepted | Refused | StepOutputs

_encoder = msgspec.msgpack.Encoder()
_to_core_decoder = msgspec.msgpack.Decoder(ToCore)
_from_core_decoder = msgspec.msgpack.Decoder(FromCore)


def encode(message: Message) -> bytes:
    """Encode one message."""
    return _encoder.encode(message)


def decode_to_core(data: bytes) -> ToCore:
    """Decode a message for the core; raises msgspec.DecodeError or ValidationError."""
    return _to_core_decoder.decode(data)


def decode_from_core(data: bytes) -> FromCore:
    """Decode a message from the core; raises msgspec.DecodeError or ValidationError."""
    return _from_core_decoder.decode(data)
