"""Paged attention in C: rotate, store and attend in two calls a layer, over buffers that live as long as the engine."""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from pagefleet.engine.kernels.cpu.cache import UNIT_TOKENS, UnitCache
from pagefleet.engine.kernels.cpu.library import AttentionArguments, KernelLibrary, load_library
from pagefleet.engine.kernels.interface import AttentionBatch, AttentionShape, PagedAttention
from pagefleet.engine.layers.rotary import RotaryTable

MOST_ROWS = 64
"""Query tokens of one item times query heads of a group, as in attention_tiles.h."""

MOST_HEAD_DIM = 256

NO_WINDOW = 2**31
"""A window longer than any context."""

TILE_TOKENS = 16
"""Query tokens of one item at most: more reads a key less often, but computes more that the mask hides."""


class CpuAttention(PagedAttention):
    """Attend with the C kernels. Batch-invariant: a row's result does not depend on what else is in the step."""

    name = "c-paged"
    _cache: UnitCache
    _batch: AttentionBatch

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        library = load_library()
        if library is None:
            raise RuntimeError("the C kernels cannot be loaded; ask `unsupported` first")
        self._bind(library)
        self._tile = max(1, min(TILE_TOKENS, MOST_ROWS // shape.group))
        self._items = np.empty((0, 4), dtype=np.int32)
        self._tables = np.zeros((1, 1), dtype=np.int32)

    @classmethod
    def unsupported(cls, shape: AttentionShape) -> str | None:
        """Return why the kernels cannot serve the shape on this machine, or None."""
        if shape.device.type != "cpu":
            return f"the C attention kernel computes on the CPU, not on {shape.device}"
        library = load_library()
        if library is None:
            return (
                "the C attention kernel cannot be loaded: it needs AVX2 and either a prebuilt library or a C compiler"
            )
        if shape.cache_dtype not in (torch.float32, torch.bfloat16):
            return f"the C attention kernel has no cache in {shape.cache_dtype}; use float32 or bfloat16"
        if shape.block_size % UNIT_TOKENS:
            return (
                f"the C attention kernel needs a block size that is a multiple of {UNIT_TOKENS}, not {shape.block_size}"
            )
        if shape.head_dim % max(16, library.lanes) or shape.head_dim > MOST_HEAD_DIM:
            return (
                f"the C attention kernel needs a head size that is a multiple of 16 up to {MOST_HEAD_DIM}, "
                f"not {shape.head_dim}"
            )
        if shape.group > MOST_ROWS:
            return f"the C attention kernel shares a key among {MOST_ROWS} query heads at most, not {shape.group}"
        return None

    def _bind(self, library: KernelLibrary) -> None:
        shape = self.shape
        self._rotate_and_store = library.kernel("rotate_and_store", shape.cache_dtype)
        self._attend = library.kernel("attend", shape.cache_dtype)
        self._arguments = AttentionArguments(
            query_heads=shape.query_heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            block_size=shape.block_size,
        )
        self._pointer = ctypes.byref(self._arguments)
        self._layers = []
        for layer in range(shape.layers):
            options = shape.attention_of(layer)
            self._layers.append((shape.scale_of(layer), options.window or NO_WINDOW, options.soft_cap or 0.0))

    def allocate(self, blocks_total: int, plain_slots: int = 0) -> None:  # noqa: ARG002 - nothing here is packed
        """Allocate the cache."""
        self._cache = UnitCache(self.shape, blocks_total)
        self._pools = [
            (keys.data_ptr(), values.data_ptr())
            for keys, values in zip(self._cache.keys, self._cache.values, strict=True)
        ]

    def zero(self, blocks: list[int], plain_slots: Sequence[int] = ()) -> None:  # noqa: ARG002 - nothing here is packed
        """Clear the blocks."""
        self._cache.zero(blocks)

    def copy_blocks(self, sources: list[int], targets: list[int]) -> None:
        """Copy blocks."""
        self._cache.copy_blocks(sources, targets)

    def begin_step(self, batch: AttentionBatch) -> None:
        """Fill what all layers share: block tables, and the work cut into items."""
        self._batch = batch  # keeps the slots alive, whose address the kernels get
        self._fill_tables(batch.block_tables)
        self._items = self._make_items(batch)
        arguments = self._arguments
        arguments.slots = batch.slots.data_ptr()
        arguments.tables = self._tables.ctypes.data
        arguments.table_stride = self._tables.shape[1]
        arguments.items = self._items.ctypes.data
        arguments.items_count = len(self._items)
        arguments.tokens = len(batch.slots)

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write the rows, which are rotated already."""
        self._store_rows(layer, None, key.contiguous(), value.contiguous(), None)

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Attend."""
        query = query.contiguous()
        return self._attend_rows(layer, query, query.stride(0)).view(query.shape)

    def forward(self, layer: int, qkv: torch.Tensor, rotary: RotaryTable) -> torch.Tensor:
        """Rotate the queries in place and the keys on their way into the cache, and attend."""
        shape = self.shape
        heads = qkv.view(qkv.shape[0], shape.query_heads + 2 * shape.kv_heads, shape.head_dim)
        keys_end = shape.query_heads + shape.kv_heads
        self._store_rows(layer, heads, heads[:, shape.query_heads : keys_end], heads[:, keys_end:], rotary)
        return self._attend_rows(layer, qkv, qkv.stride(0))

    def _point_at(self, layer: int) -> None:
        self._arguments.keys, self._arguments.values = self._pools[layer]

    def _store_rows(
        self,
        layer: int,
        query: torch.Tensor | None,
        key: torch.Tensor,
        value: torch.Tensor,
        rotary: RotaryTable | None,
    ) -> None:
        arguments = self._arguments
        self._point_at(layer)
        arguments.query = None if query is None else query.data_ptr()
        arguments.query_stride = 0 if query is None else query.stride(0)
        arguments.key, arguments.value = key.data_ptr(), value.data_ptr()
        arguments.kv_stride = key.stride(0)
        arguments.cosine = None if rotary is None else rotary.cosine.data_ptr()
        arguments.sine = None if rotary is None else rotary.sine.data_ptr()
        self._rotate_and_store(self._pointer)

    def _attend_rows(self, layer: int, query: torch.Tensor, stride: int) -> torch.Tensor:
        shape, arguments = self.shape, self._arguments
        output = torch.empty(query.shape[0], shape.query_heads * shape.head_dim, dtype=query.dtype)
        self._point_at(layer)
        arguments.scale, arguments.window, arguments.soft_cap = self._layers[layer]
        arguments.query, arguments.query_stride = query.data_ptr(), stride
        arguments.output = output.data_ptr()
        self._attend(self._pointer)
        return output

    def _fill_tables(self, tables: list[list[int]]) -> None:
        longest = max(map(len, tables))
        if len(tables) > self._tables.shape[0] or longest > self._tables.shape[1]:
            rows, columns = self._tables.shape
            columns = columns if longest <= columns else 2 * longest
            self._tables = np.zeros((max(rows, len(tables)), columns), dtype=np.int32)
        for row, table in enumerate(tables):
            self._tables[row, : len(table)] = table

    def _make_items(self, batch: AttentionBatch) -> np.ndarray:
        """Return int32 [items, 4]: sequence, first row, tokens, position of the first row.

        Sequences are cut at positions that are multiples of the tile.
        """
        lengths = np.array(batch.query_lengths, dtype=np.int32)
        contexts = np.array(batch.context_lengths, dtype=np.int32)
        if len(lengths) == len(batch.slots):  # decodes alone: an item each
            rows = np.arange(len(lengths), dtype=np.int32)
            return np.stack((rows, rows, lengths, contexts - lengths), axis=1)
        first_rows = np.cumsum(lengths, dtype=np.int32) - lengths
        first_positions = contexts - lengths
        past_cut = first_positions % self._tile
        pieces = -(-(past_cut + lengths) // self._tile)
        sequence = np.repeat(np.arange(len(lengths), dtype=np.int32), pieces)
        tile = np.arange(len(sequence), dtype=np.int32) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        end = (tile + 1) * self._tile - past_cut[sequence]
        start = np.maximum(0, end - self._tile)
        items = np.empty((len(sequence), 4), dtype=np.int32)
        items[:, 0] = sequence
        items[:, 1] = first_rows[sequence] + start
        items[:, 2] = np.minimum(end, lengths[sequence]) - start
        items[:, 3] = first_positions[sequence] + start
        return items
