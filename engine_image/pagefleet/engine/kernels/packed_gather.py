"""Paged attention in torch over a packed cache: the twin of the packed kernels, and what serves where they cannot.

Sequence by sequence: what its queries see of earlier blocks is unpacked once, then the queries of each block attend
over that and their own plain block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from pagefleet.engine.kernels.gather import capped_attention, visible_keys
from pagefleet.engine.kernels.interface import AttentionBatch, AttentionShape, PagedAttention
from pagefleet.engine.kernels.packed_cache import PackedCache
from pagefleet.engine.kernels.packed_format import PackedFormat, rotation


@dataclass(frozen=True)
class _Tile:
    """The queries of one sequence that lie in one block."""

    rows: slice
    first_position: int
    block: int
    """Index into the sequence's table."""
    tokens: int


class PackedGatherAttention(PagedAttention):
    """Unpack, then call torch's fused attention."""

    name = "gather-packed"
    _cache: PackedCache
    _batch: AttentionBatch
    _full: tuple[torch.Tensor, torch.Tensor]
    """Slots and blocks that this step fills."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        self._packed = packed_format_of(shape)
        self._rotation = rotation(shape.head_dim, shape.device)

    @classmethod
    def unsupported(cls, shape: AttentionShape) -> str | None:
        """Return why the shape cannot be packed, or None."""
        if shape.head_dim % 8:
            return f"a packed KV cache needs a head size that is a multiple of 8, not {shape.head_dim}"
        return None

    def allocate(self, blocks_total: int, plain_slots: int = 0) -> None:
        """Allocate the cache."""
        self._cache = PackedCache(self.shape, self._packed, blocks_total, plain_slots)

    def zero(self, blocks: list[int], plain_slots: Sequence[int] = ()) -> None:
        """Clear blocks and slots."""
        self._cache.zero(blocks, list(plain_slots))

    def copy_blocks(self, sources: list[int], targets: list[int]) -> None:
        """Copy plain slots."""
        self._cache.plain.copy_blocks(sources, targets)

    def begin_step(self, batch: AttentionBatch) -> None:
        """Find the blocks that this step fills."""
        self._batch = batch
        blocks = filled_blocks(batch, self.shape)
        index = torch.tensor(blocks, dtype=torch.int64)
        self._full = (self._slots_of(index), index.to(self.shape.device))

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write the rows plain, and pack the blocks that are full."""
        rotated = (value.float() @ self._rotation).to(value.dtype)
        self._cache.plain.store(layer, self._batch, key, rotated)
        slots, blocks = self._full
        if len(blocks):
            self._cache.pack(layer, slots, blocks)

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Attend sequence by sequence and block by block."""
        batch, window = self._batch, self.shape.attention_of(layer).window
        result = torch.empty_like(query)
        row = 0
        for length, context, table in zip(batch.query_lengths, batch.context_lengths, batch.block_tables, strict=True):
            first_position = context - length
            first_block = _first_visible(first_position, window) // self.shape.block_size
            last_block = (context - 1) // self.shape.block_size
            earlier = self._earlier(layer, table, first_block, last_block)
            for tile in self._tiles(row, first_position, context):
                result[tile.rows] = self._attend_tile(layer, query[tile.rows], tile, table, first_block, earlier)
            row += length
        return result

    def _tiles(self, row: int, first_position: int, context: int) -> Iterator[_Tile]:
        size = self.shape.block_size
        for block in range(first_position // size, (context - 1) // size + 1):
            first, end = max(first_position, block * size), min(context, (block + 1) * size)
            start = row + first - first_position
            yield _Tile(slice(start, start + end - first), first, block, end - first)

    def _attend_tile(
        self,
        layer: int,
        query: torch.Tensor,
        tile: _Tile,
        table: list[int],
        first_block: int,
        earlier: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        shape, options = self.shape, self.shape.attention_of(layer)
        own = self._slots_of(torch.tensor(table[tile.block : tile.block + 1]))
        size, device = shape.block_size, shape.device
        start = max(0, _first_visible(tile.first_position, options.window) // size - first_block)
        end = tile.block - first_block
        key, value = (
            torch.cat([before[start:end], plain[own].to(before.dtype)]).flatten(0, 1).to(query.dtype)
            for before, plain in zip(
                earlier, (self._cache.plain.keys[layer], self._cache.plain.values[layer]), strict=True
            )
        )
        positions = torch.arange(tile.first_position, tile.first_position + tile.tokens, device=device)[:, None]
        keys = torch.arange((first_block + start) * size, (tile.block + 1) * size, device=device)
        mask = visible_keys(keys, positions, options.window).repeat_interleave(shape.group, dim=0)[None, None]
        rows = query.view(1, tile.tokens, shape.kv_heads, shape.group, shape.head_dim)
        folded = rows.transpose(1, 2).reshape(1, shape.kv_heads, -1, shape.head_dim)
        key, value = key.transpose(0, 1)[None], value.transpose(0, 1)[None]
        scale = shape.scale_of(layer)
        if options.soft_cap is None:
            attended = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scale)
        else:
            attended = capped_attention(folded, key, value, mask, scale, options.soft_cap)
        unfolded = attended.view(1, shape.kv_heads, tile.tokens, shape.group, shape.head_dim).transpose(1, 2)
        turned_back = unfolded.float() @ self._rotation
        return turned_back.reshape(tile.tokens, shape.query_heads, shape.head_dim).to(query.dtype)

    def _earlier(self, layer: int, table: list[int], first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return blocks `first` to `end` as later queries see them, [blocks, block_size, heads, head_dim] float32."""
        sinks = torch.tensor(table[first : min(end, self.shape.sink_blocks)], dtype=torch.int64)
        rounded = torch.tensor(table[max(first, self.shape.sink_blocks) : end], dtype=torch.int64)
        slots = self._slots_of(sinks)
        keys, values = self._cache.unpack(layer, rounded.to(self.shape.device))
        plain_keys, plain_values = self._cache.plain.keys[layer][slots], self._cache.plain.values[layer][slots]
        return torch.cat([plain_keys.float(), keys]), torch.cat([plain_values.float(), values])

    def _slots_of(self, blocks: torch.Tensor) -> torch.Tensor:
        slots = self._batch.plain_slots
        if slots is None:
            raise ValueError("a packed cache needs the batch's plain slots")
        return slots[blocks].to(self.shape.device, torch.int64)


def packed_format_of(shape: AttentionShape) -> PackedFormat:
    """Return the shape's packed format; raises ValueError when it has none."""
    if shape.packed is None:
        raise ValueError("this back end serves packed caches only")
    return shape.packed


def filled_blocks(batch: AttentionBatch, shape: AttentionShape) -> list[int]:
    """Return the blocks that the step fills to the last token, but for sinks."""
    size = shape.block_size
    return [
        block
        for length, context, table in zip(batch.query_lengths, batch.context_lengths, batch.block_tables, strict=True)
        for block in table[max((context - length) // size, shape.sink_blocks) : context // size]
    ]


def _first_visible(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position + 1 - window)
