"""Paged attention in Triton over a packed cache: `TritonAttention` over plain slots, and a launch that packs blocks.

Values are rotated before they are stored and results afterwards, by products with a small matrix.
"""

from collections.abc import Sequence

import torch

from pagefleet.engine.kernels.cache import BlockCache, zeroed
from pagefleet.engine.kernels.interface import AttentionBatch, AttentionShape
from pagefleet.engine.kernels.packed_format import SCALES, PackedFormat, rotation
from pagefleet.engine.kernels.packed_gather import filled_blocks, packed_format_of
from pagefleet.engine.kernels.triton.attention import TritonAttention
from pagefleet.engine.kernels.triton.tiles import StepItems, cut_step, packed_tile
from pagefleet.engine.layers.rotary import RotaryTable

LEAST_BLOCK_SIZE = 16
"""The fewest keys that tensor cores multiply with."""

MOST_BLOCK_SIZE = 128
"""One program packs a block's head, which it holds in registers."""


class PackedPools:
    """Hold rounded blocks, `[layers, blocks, kv_heads, ...]`."""

    def __init__(self, shape: AttentionShape, packed: PackedFormat, blocks_total: int) -> None:
        outer, head_dim, block = (shape.layers, blocks_total, shape.kv_heads), shape.head_dim, shape.block_size

        def pool(*inner: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
            return zeroed((*outer, *inner), dtype, shape.device)

        self._pools = (
            pool(block, head_dim * packed.key_bits // 8),
            pool(head_dim),
            pool(head_dim, dtype=torch.bfloat16),
            pool(block, head_dim * packed.value_bits // 8),
            pool(block),
            pool(block, dtype=torch.int8),
        )
        self._scales = SCALES.to(shape.device)

    @property
    def bytes_per_block(self) -> int:
        """Return what one packed block takes over all layers."""
        return sum(pool[:, 0].nbytes for pool in self._pools)

    def zero(self, blocks: list[int]) -> None:
        """Clear blocks in all layers."""
        index = torch.tensor(blocks, dtype=torch.int64, device=self._scales.device)
        for pool in self._pools:
            pool.index_fill_(1, index, 0)

    def of(self, layer: int) -> tuple[torch.Tensor, ...]:
        """Return keys' codes, scales and least, values' codes, scales and middles, and the table of scales."""
        return (*(pool[layer] for pool in self._pools), self._scales)


class PackedTritonAttention(TritonAttention):
    """Attend over rounded blocks; the twin is `PackedGatherAttention`."""

    name = "triton-paged-packed"
    _pools: PackedPools

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        self._packed = packed_format_of(shape)
        self._rotation = rotation(shape.head_dim, shape.device)
        self._decode_tile, self._prefill_tile = (
            packed_tile(
                tile,
                block_size=shape.block_size,
                group=shape.group,
                head_dim=shape.head_dim,
                itemsize=shape.cache_dtype.itemsize,
            )
            for tile in (self._decode_tile, self._prefill_tile)
        )

    @classmethod
    def unsupported(cls, shape: AttentionShape) -> str | None:
        """Return why the kernels cannot serve the shape on this device, or None."""
        if reason := super().unsupported(shape):
            return reason
        if shape.head_dim % 8:
            return f"a packed KV cache needs a head size that is a multiple of 8, not {shape.head_dim}"
        size = shape.block_size
        if size & (size - 1) or not LEAST_BLOCK_SIZE <= size <= MOST_BLOCK_SIZE:
            return (
                f"the Triton attention kernel packs blocks of {LEAST_BLOCK_SIZE}, 32, 64 or {MOST_BLOCK_SIZE} tokens, "
                f"not {size}"
            )
        return None

    def allocate(self, blocks_total: int, plain_slots: int = 0) -> None:
        """Allocate the cache."""
        shape = self.shape
        self._cache = BlockCache(shape, plain_slots, (shape.kv_heads, shape.block_size, shape.head_dim))
        self._pools = PackedPools(shape, self._packed, blocks_total)

    def zero(self, blocks: list[int], plain_slots: Sequence[int] = ()) -> None:
        """Clear blocks and slots."""
        self._pools.zero(blocks)
        self._cache.zero(list(plain_slots))

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write the rows plain, which are rotated already by their positions, and pack the blocks that are full."""
        super().store(layer, key, (value.float() @ self._rotation).to(value.dtype))
        self._pack(layer)

    def forward(self, layer: int, qkv: torch.Tensor, rotary: RotaryTable) -> torch.Tensor:
        """Rotate queries and values in place and keys on their way into the cache, pack, and attend."""
        shape = self.shape
        heads = qkv.view(qkv.shape[0], shape.query_heads + 2 * shape.kv_heads, shape.head_dim)
        values = heads[:, shape.query_heads + shape.kv_heads :]
        values.copy_(values.float() @ self._rotation)
        self._rotate_and_store(layer, qkv, rotary)
        self._pack(layer)
        return self._attend(layer, qkv)

    def _cut(self, batch: AttentionBatch, least_decodes: int) -> StepItems:
        """Cut at blocks; the tables' first entries, which are sinks, become their plain slots."""
        shape, slot_of = self.shape, batch.plain_slots
        fills: list[tuple[int, int]] = []
        tables: list[list[int]] = []
        if batch.block_tables:
            if slot_of is None:
                raise ValueError("a packed cache needs the batch's plain slots")
            fills = [(int(slot_of[block]), block) for block in filled_blocks(batch, shape)]
            tables = [
                [*slot_of[table[: shape.sink_blocks]].tolist(), *table[shape.sink_blocks :]]
                for table in batch.block_tables
            ]
        return cut_step(
            batch.query_lengths,
            batch.context_lengths,
            tables,
            tile_tokens=self._prefill_tile.rows // shape.group,
            least_decodes=least_decodes,
            cut_at=shape.block_size,
            fills=fills,
        )

    def _pack(self, layer: int) -> None:
        if self._items.fills:
            plain = self._cache.keys[layer], self._cache.values[layer]
            self._launcher.pack(plain, self._pools.of(layer), self._buffer.numbers, self._items)

    def _attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Return [tokens, query_heads * head_dim], rotated back before it is rounded to the rows' type."""
        shape = self.shape
        size = len(query) * shape.query_heads
        attended = torch.empty(size, shape.head_dim, dtype=torch.float32, device=query.device)
        plain = self._cache.keys[layer], self._cache.values[layer]
        self._attend_into(attended, layer, query, (*plain, self._slots, *self._pools.of(layer)))
        return (attended @ self._rotation).to(query.dtype).view(len(query), -1)
