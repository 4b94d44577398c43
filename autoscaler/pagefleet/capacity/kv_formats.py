"""How many bytes keys and values take, by the format that they are cached in."""

import math
from dataclasses import dataclass

from pagefleet.capacity.errors import CannotPlan
from pagefleet.capacity.model_facts import Architecture

KEY_METADATA_BITS = 24
"""Of a channel of a block: an 8-bit scale, and a 16-bit offset for the biases of channels."""

VALUE_METADATA_BITS = 16
"""Of a token's head: an 8-bit scale and an 8-bit offset."""

SINK_TOKENS = 64
"""First tokens of a sequence that quantized formats keep as computed: nearly all attention looks at them."""


@dataclass(frozen=True, kw_only=True)
class KvFormat:
    """Describe a cache format. Quantized keys share metadata per channel of a block, values per token and head."""

    key_bits: int
    value_bits: int
    is_quantized: bool = False
    """In groups, so that sinks and the unfilled last block of a sequence stay as computed."""
    least_block_size: int = 1
    """Below it the metadata of a block's keys outweighs what fewer bits save."""
    usual_block_size: int = 16
    """What the engine takes when nobody says."""

    def bits_per_pair(self, block_size: int, head_dim: int) -> float:
        """Return the bits of one key number and one value number with their metadata."""
        if not self.is_quantized:
            return self.key_bits + self.value_bits
        return self.key_bits + KEY_METADATA_BITS / block_size + self.value_bits + VALUE_METADATA_BITS / head_dim


KV_FORMATS: dict[str, KvFormat] = {
    "float32": KvFormat(key_bits=32, value_bits=32),
    "bf16": KvFormat(key_bits=16, value_bits=16),
    "fp8": KvFormat(key_bits=8, value_bits=8),
    "int8": KvFormat(key_bits=8, value_bits=8, is_quantized=True, least_block_size=16, usual_block_size=64),
    "int4": KvFormat(key_bits=4, value_bits=4, is_quantized=True, least_block_size=32, usual_block_size=64),
    "k4v3": KvFormat(key_bits=4, value_bits=3, is_quantized=True, least_block_size=64, usual_block_size=64),
}
"""By the words of `spec.engine.kvCache.dtype`, from most to least memory and accuracy."""

AUTO = "auto"
"""The format that the model computes in."""


def resolve_kv_format(name: str, compute_dtype: str) -> str:
    """Return the format that a name stands for; raises CannotPlan."""
    if name == AUTO:
        return "float32" if compute_dtype == "float32" else "bf16"
    if name not in KV_FORMATS:
        raise CannotPlan(f"KV cache dtype {name} is unknown: write one of {', '.join((AUTO, *KV_FORMATS))}")
    return name


def flag_word(name: str) -> str:
    """Return a format as the engine's flag spells it."""
    return "bfloat16" if name == "bf16" else name


def format_of_flag(word: str) -> str:
    """Return the format that the engine's flag spells so."""
    return "bf16" if word == "bfloat16" else word


def check_block_size(name: str, block_size: int) -> None:
    """Refuse a block size that is illegal for a format; raises CannotPlan."""
    if block_size < 1:
        raise CannotPlan(f"block size {block_size} holds no token: for example 16")
    least = KV_FORMATS[name].least_block_size
    if block_size < least or (KV_FORMATS[name].is_quantized and block_size % 16):
        raise CannotPlan(
            f"block size {block_size} is illegal for KV cache dtype {name}, whose blocks are multiples of 16 from "
            f"{least} on: use {max(least, -(-block_size // 16) * 16)}, or KV cache dtype bf16"
        )


def kv_bytes_per_token(
    model: Architecture, name: str, *, block_size: int, tensor_parallel_size: int = 1, context: int | None = None
) -> float:
    """Return the cache bytes of one token over all layers on one accelerator.

    With a `context`, the mean bytes that a step reads per token of a sequence so long: windows read no further back.
    """
    layers: float = model.layers
    if context:
        layers = sum(min(context, window or context) for window in model.windows) / context
    kept = KV_FORMATS[name]
    if model.latent is not None:  # one vector serves all heads, so that every accelerator needs all of it
        width = model.latent.kv_rank + model.latent.rotary_dim
        return layers * width * kept.bits_per_pair(block_size, width) / 2 / 8
    heads = max(1, -(-model.kv_heads // tensor_parallel_size))
    return layers * heads * model.head_dim * kept.bits_per_pair(block_size, model.head_dim) / 8


def kv_block_bytes(model: Architecture, name: str, *, block_size: int, tensor_parallel_size: int = 1) -> int:
    """Return the bytes of one block over all layers on one accelerator."""
    per_token = kv_bytes_per_token(model, name, block_size=block_size, tensor_parallel_size=tensor_parallel_size)
    return math.ceil(per_token * block_size)


def sink_blocks(block_size: int) -> int:
    """Return how many first blocks of a sequence a quantized cache keeps as computed."""
    return -(-SINK_TOKENS // block_size)


def plain_blocks(*, sinks: int, block_size: int, sequences: int, step_tokens: int) -> int:
    """Return how many blocks a quantized cache keeps as computed, at the most, in steps of so many tokens.

    Each sequence has `sinks` and an unfilled last block; prompts also have the blocks that they fill in one step, and
    one more where their tokens cross into a new block.
    """
    crossing = min(sequences, step_tokens // 2)
    return sequences * (sinks + 1) + crossing + step_tokens // block_size


def kv_reserve_bytes(
    model: Architecture,
    name: str,
    *,
    compute_dtype: str,
    block_size: int,
    sequences: int,
    step_tokens: int,
    tensor_parallel_size: int = 1,
) -> int:
    """Return what a quantized cache keeps as computed beside its blocks, at the most."""
    if not KV_FORMATS[name].is_quantized:
        return 0
    blocks = plain_blocks(
        sinks=sink_blocks(block_size), block_size=block_size, sequences=sequences, step_tokens=step_tokens
    )
    plain = resolve_kv_format(AUTO, compute_dtype)
    return blocks * kv_block_bytes(model, plain, block_size=block_size, tensor_parallel_size=tensor_parallel_size)
