"""What an engine can do, and what it takes beside weights and cache: the table to change when it learns more."""

from dataclasses import dataclass

from pagefleet.capacity.model_facts import Architecture

MIB = 1024**2

CAPPED_TILE_TOKENS = 128
"""Queries whose scores stand side by side where a back end holds them."""


@dataclass(frozen=True, kw_only=True)
class SpeedPriors:
    """Say which shares of its data sheet a device reaches in this engine, until a measurement replaces them."""

    weight_stream: float
    kv_stream: float
    compute: float
    decode_compute: float
    """Share of a decode token's arithmetic that is not hidden behind the stream of weights."""
    step_overhead_s: float
    """Scheduling, sampling and reporting of one step."""


@dataclass(frozen=True, kw_only=True)
class EngineProfile:
    """Describe one engine on one kind of device."""

    name: str
    weights: tuple[str, ...]
    """Weight formats that it has, in `WEIGHT_FORMATS`' words."""
    kv_cache: tuple[str, ...]
    """Cache formats that it has, in `KV_FORMATS`' words."""
    checkpoints: tuple[str | None, ...] = (None,)
    """Quantized checkpoints that it reads as stored; None is one that is not quantized."""
    features: tuple[str, ...] = ()
    """What it can do beside plain attention."""
    has_tensor_parallelism: bool
    max_num_seqs: int
    """Its default, which bounds the choice where no speed is known."""
    max_num_batched_tokens: int
    """Its default."""
    gpu_memory_utilization: float
    """Its default."""
    hidden_copies: float
    """Rows as wide as the hidden state that a token holds at the widest point of a layer."""
    qkv_copies: float
    intermediate_copies: float
    sampling_bytes_per_logit: float
    """What the sampler holds for each sequence and vocabulary entry."""
    runtime_bytes: int
    """Interpreter, libraries, device context and kernels."""
    runtime_bytes_in_parallel: int
    """The same with buffers for communication, where a replica has several accelerators."""
    copies_tied_head: bool = False
    """The output matrix is packed for its kernel, beside the table that embeds."""
    keeps_capped_scores: bool = False
    """Attention with a soft cap holds the scores of a tile of queries, as the torch back end does."""
    speed: SpeedPriors

    def activation_values_per_token(self, model: Architecture) -> float:
        """Return how many numbers one token needs at once at the widest point of a layer."""
        qkv = (model.query_heads + 2 * model.kv_heads) * model.head_dim
        widest = max(self.qkv_copies * qkv, self.intermediate_copies * model.intermediate_size)
        return self.hidden_copies * model.hidden_size + widest

    def capped_score_bytes(self, model: Architecture, itemsize: int) -> int:
        """Return what the scores of soft-capped layers take at once: float32 before and after softmax, then rounded."""
        if not (self.keeps_capped_scores and model.has_capped_scores):
            return 0
        longest = max(window or model.context_length for window in model.windows)
        rounded = 0 if itemsize == 4 else itemsize
        return CAPPED_TILE_TOKENS * model.query_heads * min(longest, model.context_length) * (2 * 4 + rounded)


# What the engine does not have yet is left out of `weights`, `kv_cache`, `checkpoints` and `features`: adding the word
# there is all that the planner needs. The memory terms are those of the engine's own start.
PAGEFLEET_CUDA = EngineProfile(
    name="pagefleet on CUDA",
    weights=("none", "int4"),
    kv_cache=("float32", "bf16", "int8", "int4", "k4v3"),
    checkpoints=(None, "gptq", "awq", "compressed-tensors"),
    has_tensor_parallelism=False,
    max_num_seqs=128,
    max_num_batched_tokens=2048,
    gpu_memory_utilization=0.9,
    hidden_copies=3,
    qkv_copies=3,
    intermediate_copies=4,
    sampling_bytes_per_logit=24,
    runtime_bytes=600 * MIB,
    runtime_bytes_in_parallel=900 * MIB,
    # Assumed, from published step times of a 70B model on four H100: see DESIGN.md. Measured ones replace them.
    speed=SpeedPriors(weight_stream=0.6, kv_stream=0.7, compute=0.45, decode_compute=0.25, step_overhead_s=0.0005),
)
PAGEFLEET_CPU = EngineProfile(
    name="pagefleet on CPU",
    weights=("none", "int8", "int4"),
    kv_cache=("float32", "bf16", "int8", "int4", "k4v3"),
    checkpoints=(None, "gptq", "awq", "compressed-tensors"),
    has_tensor_parallelism=False,
    max_num_seqs=128,
    max_num_batched_tokens=512,
    gpu_memory_utilization=0.9,
    hidden_copies=3,
    qkv_copies=3,
    intermediate_copies=4,
    sampling_bytes_per_logit=24,
    runtime_bytes=332 * MIB,  # measured: DESIGN.md
    runtime_bytes_in_parallel=332 * MIB,
    copies_tied_head=True,
    # Measured on a 125M model in float32: engine_image/NOTES.md, C kernels against torch.
    speed=SpeedPriors(weight_stream=0.8, kv_stream=0.7, compute=0.9, decode_compute=1.0, step_overhead_s=0.0005),
)


def pagefleet_profile(kind: str) -> EngineProfile:
    """Return what this project's engine is on a CPU or on CUDA."""
    return PAGEFLEET_CPU if kind == "cpu" else PAGEFLEET_CUDA
