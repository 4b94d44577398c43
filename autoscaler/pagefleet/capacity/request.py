"""What a plan is asked for: model, accelerator, load, and what the user has fixed or allowed."""

from dataclasses import dataclass, field

from pagefleet.capacity.accelerators import Accelerator
from pagefleet.capacity.engine_profile import EngineProfile
from pagefleet.capacity.errors import CannotPlan
from pagefleet.capacity.kv_formats import AUTO, check_block_size, resolve_kv_format
from pagefleet.capacity.model_facts import ModelFacts
from pagefleet.capacity.objective import Objective
from pagefleet.capacity.quality import QualityGate, check_gate
from pagefleet.capacity.step_time import StepTime
from pagefleet.capacity.weight_formats import DTYPE_BYTES, weight_format
from pagefleet.capacity.workload import Workload


@dataclass(frozen=True, kw_only=True)
class PinnedKnobs:
    """Hold what the user has set; None is the planner's to choose."""

    block_size: int | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """List the formats to choose from. The defaults change no answer."""

    weights: tuple[str, ...] = ("none",)
    kv_cache: tuple[str, ...] = (AUTO,)
    weights_are_fixed: bool = False
    """The user has set the format itself, so that no quality result brings another."""
    kv_cache_is_fixed: bool = False


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """Hold step times that a profile measured, and with which formats: others are scaled as the priors are."""

    step: StepTime
    compute_dtype: str
    weights: str
    kv_cache: str
    """A format's own name."""


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """Ask for a plan of one replica."""

    model: ModelFacts
    accelerator: Accelerator
    engine: EngineProfile
    count: int = 1
    """Accelerators of the replica, which share each layer."""
    dtype: str = "auto"
    workload: Workload = field(default=Workload())
    objective: Objective = Objective.THROUGHPUT
    pinned: PinnedKnobs = field(default=PinnedKnobs())
    allowed: Allowed = field(default=Allowed())
    gate: QualityGate = field(default=QualityGate())
    """What is known of the answers of formats that lose some accuracy."""
    measured: MeasuredStep | None = None
    """Takes the place of the step times from data sheets."""
    chooses_knobs: bool = True
    """False plans an engine that gets the pinned knobs alone, and takes its defaults for the others."""

    @property
    def compute_dtype(self) -> str:
        """The number format that the engine takes: what is asked, else the checkpoint's as far as the device has it."""
        if self.dtype != "auto":
            return self.dtype
        architecture = self.model.architecture
        is_plain_float32 = architecture.stored_dtype == "float32" and architecture.quantization is None
        return "float32" if is_plain_float32 or not self.accelerator.has_fast_bfloat16 else "bfloat16"

    @property
    def gpu_memory_utilization(self) -> float:
        """The share of memory that the engine may use."""
        return self.pinned.gpu_memory_utilization or self.engine.gpu_memory_utilization

    @property
    def needed_tokens(self) -> int:
        """Tokens that the cache must hold at least: the longest sequence that was asked for, else a mean request."""
        mean = self.workload.prompt_tokens.mean + self.workload.output_tokens.mean
        return self.pinned.max_model_len or max(1, round(mean))


def check_request(request: PlanRequest) -> None:
    """Refuse what no plan can be made of; raises CannotPlan."""
    architecture, pinned = request.model.architecture, request.pinned
    if not request.accelerator.memory_bytes:
        raise CannotPlan(f"accelerator {request.accelerator.name} has no memory size: give it, for example 24GiB")
    if request.dtype not in ("auto", *DTYPE_BYTES):
        raise CannotPlan(f"dtype {request.dtype} is unknown: write auto, {' or '.join(DTYPE_BYTES)}")
    if request.count < 1 or architecture.query_heads % request.count:
        heads = architecture.query_heads
        divisors = [str(size) for size in range(1, min(heads, 16) + 1) if heads % size == 0]
        raise CannotPlan(
            f"{request.count} accelerators cannot share the {heads} heads of a layer: use {', '.join(divisors)}"
        )
    if pinned.gpu_memory_utilization is not None and not 0 < pinned.gpu_memory_utilization <= 1:
        raise CannotPlan(
            f"a memory utilization of {pinned.gpu_memory_utilization:g} is no share: above 0 and at most 1, such as 0.9"
        )
    if request.measured is not None and request.measured.compute_dtype != request.compute_dtype:
        raise CannotPlan(
            f"the profile was measured in {request.measured.compute_dtype} and the plan is for "
            f"{request.compute_dtype}: give --dtype {request.measured.compute_dtype}, or another profile"
        )
    check_gate(request.gate)
    _check_counts(pinned)
    _check_default_places(request)
    _check_lengths(request)
    if not request.allowed.weights or not request.allowed.kv_cache:
        raise CannotPlan("the allow-list names no format: write at least weights none and KV cache auto")
    for name in request.allowed.weights:
        weight_format(name)
    formats = [resolve_kv_format(name, request.compute_dtype) for name in request.allowed.kv_cache]
    if pinned.block_size is not None:
        for name in formats:
            check_block_size(name, pinned.block_size)


def _check_counts(pinned: PinnedKnobs) -> None:
    for what, value, works in (
        ("block size", pinned.block_size, 16),
        ("max_model_len", pinned.max_model_len, 2048),
        ("max_num_seqs", pinned.max_num_seqs, 128),
        ("max_num_batched_tokens", pinned.max_num_batched_tokens, 2048),
    ):
        if value is not None and value < 1:
            raise CannotPlan(f"{what} {value} is too small: the smallest is 1, for example {works}")
    sequences, tokens = pinned.max_num_seqs, pinned.max_num_batched_tokens
    if sequences is not None and tokens is not None and tokens < sequences:
        raise CannotPlan(
            f"max_num_batched_tokens {tokens} is less than max_num_seqs {sequences}, so a step cannot give each "
            f"sequence a token: use {sequences} or more"
        )


def _check_default_places(request: PlanRequest) -> None:
    """Refuse a step too narrow for the engine's own max_num_seqs, with which it would not start."""
    tokens, default = request.pinned.max_num_batched_tokens, request.engine.max_num_seqs
    if request.chooses_knobs or request.pinned.max_num_seqs is not None or tokens is None or tokens >= default:
        return
    raise CannotPlan(
        f"max_num_batched_tokens {tokens} is less than the engine's default max_num_seqs {default}, so it would not "
        f"start: use {default} or more, or a max_num_seqs of {tokens} or less"
    )


def _check_lengths(request: PlanRequest) -> None:
    context = request.model.architecture.context_length
    asked = request.pinned.max_model_len
    if asked is not None and asked > context:
        raise CannotPlan(f"max_model_len {asked} is longer than the model's context: use at most {context}")
    mean = round(request.workload.prompt_tokens.mean + request.workload.output_tokens.mean)
    if mean > (asked or context):
        instead = f"a max_model_len of {mean} or more" if asked and mean <= context else "shorter requests"
        raise CannotPlan(
            f"a mean request of {mean} tokens, prompt and output, is longer than the longest sequence, "
            f"{asked or context} tokens: use {instead}"
        )
