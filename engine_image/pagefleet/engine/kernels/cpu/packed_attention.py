"""Paged attention in C over a packed cache: full blocks are read as the codes that they were rounded to."""

import ctypes
from collections.abc import Sequence

import numpy as np

from pagefleet.engine.kernels.cpu.attention import CpuAttention
from pagefleet.engine.kernels.cpu.library import KernelLibrary, PackedArguments
from pagefleet.engine.kernels.cpu.packed_cache import PackedUnitCache
from pagefleet.engine.kernels.interface import AttentionBatch, AttentionShape
from pagefleet.engine.kernels.packed_gather import filled_blocks, packed_format_of


class PackedCpuAttention(CpuAttention):
    """Attend with the C kernels. Batch-invariant: a row's result does not depend on what else is in the step."""

    name = "c-packed"
    _cache: PackedUnitCache  # type: ignore[assignment] # the rest of the class reads neither
    _arguments: PackedArguments
    _filled: np.ndarray

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        self._tile = 1 << (self._tile.bit_length() - 1)  # a power of two divides every block, so no item leaves one

    def _bind(self, library: KernelLibrary) -> None:
        super()._bind(library)
        shape, packed = self.shape, packed_format_of(self.shape)
        self._rotate_and_store = library.kernel("rotate_store_and_pack", shape.cache_dtype)
        self._attend = library.kernel("attend_packed", shape.cache_dtype)
        self._arguments = PackedArguments(
            query_heads=shape.query_heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            block_size=shape.block_size,
            record_bytes=packed.bytes_per_head(shape.block_size, shape.head_dim),
            key_bits=packed.key_bits,
            value_bits=packed.value_bits,
            sink_blocks=shape.sink_blocks,
        )
        self._pointer = ctypes.byref(self._arguments)

    def allocate(self, blocks_total: int, plain_slots: int = 0) -> None:
        """Allocate the cache."""
        self._cache = PackedUnitCache(self.shape, packed_format_of(self.shape), blocks_total, plain_slots)
        plain = self._cache.plain
        self._pools = [
            (keys.data_ptr(), values.data_ptr()) for keys, values in zip(plain.keys, plain.values, strict=True)
        ]

    def zero(self, blocks: list[int], plain_slots: Sequence[int] = ()) -> None:
        """Clear blocks and slots."""
        self._cache.zero(blocks, list(plain_slots))

    def copy_blocks(self, sources: list[int], targets: list[int]) -> None:
        """Copy plain slots."""
        self._cache.plain.copy_blocks(sources, targets)

    def begin_step(self, batch: AttentionBatch) -> None:
        """Fill what all layers share, and find the blocks that this step fills."""
        super().begin_step(batch)
        if batch.plain_slots is None:
            raise ValueError("a packed cache needs the batch's plain slots")
        blocks = filled_blocks(batch, self.shape)
        self._filled = np.empty((len(blocks), 2), dtype=np.int32)
        self._filled[:, 0] = batch.plain_slots.numpy()[blocks]
        self._filled[:, 1] = blocks
        arguments = self._arguments
        arguments.plain_slots = batch.plain_slots.data_ptr()
        arguments.filled = self._filled.ctypes.data
        arguments.filled_count = len(blocks)

    def _point_at(self, layer: int) -> None:
        super()._point_at(layer)
        self._arguments.records = self._cache.records[layer].data_ptr()
