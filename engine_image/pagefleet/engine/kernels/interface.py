"""The seam between models and attention kernels.

A back end owns the KV cache and its layout: callers know blocks only as numbers. It receives the fused, not yet rotated
QKV rows, so that a kernel may rotate, store and attend in one pass. To add one: subclass `PagedAttention`, and compare
it with `reference.ReferenceAttention`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagefleet.capacity.kv_formats import sink_blocks
from pagefleet.engine.kernels.packed_format import PackedFormat
from pagefleet.engine.layers.rotary import RotaryTable, rotate


@dataclass(frozen=True, kw_only=True)
class LayerAttention:
    """Say how one layer attends; what is None is what Llama does."""

    scale: float | None = None
    """Multiplies the scores; None is the shape's."""
    window: int | None = None
    """A query sees this many tokens, itself included, and a back end reads no others; None sees all before it."""
    soft_cap: float | None = None
    """Scaled scores become soft_cap * tanh(score / soft_cap), as in Gemma 2 (arXiv 2408.00118)."""


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """Describe one model's attention and its cache."""

    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    scale: float
    """Multiplies the scores; 1/sqrt(head_dim) in Llama."""
    block_size: int
    cache_dtype: torch.dtype
    """Of what is stored plain."""
    device: torch.device
    packed: PackedFormat | None = None
    """How full blocks are rounded; None keeps all of them in `cache_dtype`."""
    layer_attention: tuple[LayerAttention, ...] = ()
    """One entry per layer; empty when all attend as Llama's do."""

    def attention_of(self, layer: int) -> LayerAttention:
        """Return how a layer attends."""
        return self.layer_attention[layer] if self.layer_attention else LayerAttention()

    def scale_of(self, layer: int) -> float:
        """Return what multiplies a layer's scores."""
        scale = self.attention_of(layer).scale
        return self.scale if scale is None else scale

    @property
    def group(self) -> int:
        """Return how many query heads share one KV head (GQA; 1 is MHA, all is MQA)."""
        return self.query_heads // self.kv_heads

    @property
    def sink_blocks(self) -> int:
        """Return how many first blocks of a sequence a packed cache keeps plain."""
        return sink_blocks(self.block_size)

    @property
    def bytes_per_block(self) -> int:
        """Return the bytes of one block over all layers, keys and values, packed where the cache is."""
        if self.packed is None:
            return self.plain_bytes_per_block
        return self.layers * self.kv_heads * self.packed.bytes_per_head(self.block_size, self.head_dim)

    @property
    def plain_bytes_per_block(self) -> int:
        """Return the bytes of one block over all layers in the cache's dtype."""
        values = 2 * self.layers * self.kv_heads * self.head_dim * self.block_size
        return values * self.cache_dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class AttentionBatch:
    """Describe the rows of one step: the queries of all sequences, one after another.

    Sequence `i` has `query_lengths[i]` new tokens, which end at position `context_lengths[i] - 1`.
    """

    positions: torch.Tensor
    """[tokens] int64: position of each row in its sequence."""
    slots: torch.Tensor
    """[tokens] int64: block * block_size + offset, where the row's key and value go; in a packed cache its plain slot
    takes the block's place."""
    query_lengths: list[int]
    context_lengths: list[int]
    block_tables: list[list[int]]
    """Blocks of each sequence, at least enough for its context."""
    plain_slots: torch.Tensor | None = None
    """[blocks] int32: the plain slot of each block of a packed cache, where it has one."""


class PagedAttention(ABC):
    """Store keys and values in blocks and attend over them."""

    name: str

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape

    @classmethod
    def unsupported(cls, shape: AttentionShape) -> str | None:  # noqa: ARG003 - a back end with limits looks at it
        """Return the sentence that says why this back end cannot serve the shape, or None."""
        return None

    @abstractmethod
    def allocate(self, blocks_total: int, plain_slots: int = 0) -> None:
        """Allocate the cache, zeroed: masked lanes are multiplied by zero, which garbage such as NaN would survive.

        `plain_slots` blocks of a packed cache can be plain at the same time.
        """

    @abstractmethod
    def begin_step(self, batch: AttentionBatch) -> None:
        """Prepare, once per step, what all layers share."""

    @abstractmethod
    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write rotated keys and values, both [tokens, kv_heads, head_dim], to the step's slots.

        A packed cache then packs the blocks that are full, but for sinks.
        """

    @abstractmethod
    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Attend over the stored context; query and result are [tokens, query_heads, head_dim]."""

    @abstractmethod
    def zero(self, blocks: list[int], plain_slots: Sequence[int] = ()) -> None:
        """Clear blocks, and plain slots, that may hold values that are not finite."""

    @abstractmethod
    def copy_blocks(self, sources: list[int], targets: list[int]) -> None:
        """Copy whole blocks in all layers; no target is a source or twice a target.

        In a packed cache the numbers are plain slots: only blocks that are not full are copied.
        """

    def forward(self, layer: int, qkv: torch.Tensor, rotary: RotaryTable) -> torch.Tensor:
        """Rotate, store and attend.

        `qkv` is [tokens, (query_heads + 2 * kv_heads) * head_dim] and may be overwritten, the result
        [tokens, query_heads * head_dim].
        """
        shape = self.shape
        heads = qkv.view(qkv.shape[0], shape.query_heads + 2 * shape.kv_heads, shape.head_dim)
        rotated = rotate(heads[:, : shape.query_heads + shape.kv_heads], rotary)
        self.store(layer, rotated[:, shape.query_heads :], heads[:, shape.query_heads + shape.kv_heads :])
        return self.attend(layer, rotated[:, : shape.query_heads]).reshape(qkv.shape[0], -1)
