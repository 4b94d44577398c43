"""The token-major KV cache of the torch back ends: one tensor for keys and one for values per layer.

`[blocks, block_size, kv_heads, head_dim]`: a gathered run of blocks is a sequence of tokens without a second copy, and
a block is one contiguous piece, so copying one stays a memcpy.
"""

import contextlib
import math
import mmap

import torch

from pagefleet.engine.kernels.interface import AttentionBatch, AttentionShape


class BlockCache:
    """Hold keys and values of all layers, whatever is inside a block: one contiguous piece per layer."""

    def __init__(self, shape: AttentionShape, blocks_total: int, block_dimensions: tuple[int, ...]) -> None:
        pool = zeroed((2, shape.layers, blocks_total, *block_dimensions), shape.cache_dtype, shape.device)
        self.keys = list(pool[0])
        self.values = list(pool[1])

    def zero(self, blocks: list[int]) -> None:
        """Clear the blocks in all layers."""
        index = torch.tensor(blocks, dtype=torch.int64, device=self.keys[0].device)
        for cache in self._bytes():
            cache.index_fill_(0, index, 0)

    def copy_blocks(self, sources: list[int], targets: list[int]) -> None:
        """Copy blocks in all layers."""
        device = self.keys[0].device
        source = torch.tensor(sources, dtype=torch.int64, device=device)
        target = torch.tensor(targets, dtype=torch.int64, device=device)
        for cache in self._bytes():
            cache.index_copy_(0, target, cache.index_select(0, source))

    def _bytes(self) -> list[torch.Tensor]:
        """Return the cache of each layer as bytes: torch moves few kinds of 8-bit numbers by index."""
        return [cache.view(torch.uint8) for cache in (*self.keys, *self.values)]


class TokenMajorCache(BlockCache):
    """Lay blocks out token by token."""

    def __init__(self, shape: AttentionShape, blocks_total: int) -> None:
        super().__init__(shape, blocks_total, (shape.block_size, shape.kv_heads, shape.head_dim))

    def store(self, layer: int, batch: AttentionBatch, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write [tokens, kv_heads, head_dim] keys and values to the batch's slots."""
        for cache, rows in ((self.keys[layer], key), (self.values[layer], value)):
            cache.view(-1, *cache.shape[2:]).index_copy_(0, batch.slots, rows.to(cache.dtype))


def zeroed(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor of zeros; on the CPU its pages come from the system one by one, as they are used.

    `torch.zeros` would touch all of it: 5 s and a gibibyte of resident memory for each gibibyte of cache.
    """
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    memory = mmap.mmap(-1, math.prod(size) * dtype.itemsize)
    with contextlib.suppress(AttributeError, OSError):  # a wish: not every system and kernel has them
        # Blocks are read at random: with 4 KiB pages that is bound by address translation.
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(size)
