"""Where the memory of one accelerator goes, for one choice of the engine's knobs. Bytes."""

from dataclasses import dataclass

from pagefleet.capacity.accelerators import Accelerator
from pagefleet.capacity.engine_profile import EngineProfile
from pagefleet.capacity.kv_formats import kv_block_bytes, kv_reserve_bytes
from pagefleet.capacity.model_facts import ModelFacts
from pagefleet.capacity.weight_formats import DTYPE_BYTES, weights_bytes


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """Hold the engine's settings that memory and speed depend on, `max_model_len` aside."""

    compute_dtype: str
    weights: str
    kv_cache: str
    """A format's own name: `auto` is resolved."""
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    tensor_parallel_size: int


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Split the memory of one accelerator into its uses."""

    memory_bytes: int
    """What the accelerator has."""
    usable_bytes: int
    """The share of it that the engine may use."""
    weights_bytes: int
    activation_bytes: int
    """Peak of one step's intermediate values."""
    runtime_bytes: int
    """Interpreter, libraries and device context, and file pages that stay mapped."""
    kv_reserve_bytes: int
    """What quantized caches keep as computed."""
    block_bytes: int
    """One block over all layers."""

    @property
    def fixed_bytes(self) -> int:
        """What is taken before the first block."""
        return self.weights_bytes + self.activation_bytes + self.runtime_bytes + self.kv_reserve_bytes

    @property
    def kv_budget_bytes(self) -> int:
        """What is left for blocks; negative where the rest does not even fit."""
        return self.usable_bytes - self.fixed_bytes


def footprint(model: ModelFacts, accelerator: Accelerator, knobs: Knobs, profile: EngineProfile) -> Footprint:
    """Predict the uses of one accelerator's memory; its size must be known."""
    architecture, parallel = model.architecture, knobs.tensor_parallel_size
    memory_bytes = accelerator.memory_bytes or 0
    runtime_bytes = profile.runtime_bytes if parallel == 1 else profile.runtime_bytes_in_parallel
    if profile.keeps_files_mapped:
        runtime_bytes += model.weights.stored_bytes
    return Footprint(
        memory_bytes=memory_bytes,
        usable_bytes=int(memory_bytes * knobs.gpu_memory_utilization),
        weights_bytes=weights_bytes(
            model,
            quantization=knobs.weights,
            compute_dtype=knobs.compute_dtype,
            tensor_parallel_size=parallel,
            copies_tied_head=profile.copies_tied_head,
        ),
        activation_bytes=round(
            knobs.max_num_batched_tokens
            * profile.activation_values_per_token(architecture)
            * DTYPE_BYTES[knobs.compute_dtype]
            + knobs.max_num_seqs * architecture.vocabulary_size * profile.sampling_bytes_per_logit
        ),
        runtime_bytes=runtime_bytes,
        kv_reserve_bytes=kv_reserve_bytes(
            architecture,
            knobs.kv_cache,
            compute_dtype=knobs.compute_dtype,
            block_size=knobs.block_size,
            sequences=knobs.max_num_seqs,
            step_tokens=knobs.max_num_batched_tokens,
            tensor_parallel_size=parallel,
        ),
        block_bytes=kv_block_bytes(
            architecture, knobs.kv_cache, block_size=knobs.block_size, tensor_parallel_size=parallel
        ),
    )
