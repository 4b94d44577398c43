"""The token-major KV cache of the torch back ends: one tensor for keys and one for values per layer.

`[blocks, block_size, kv_heads, head_dim]`: a gathered run of blocks is a sequence of tokens without a second copy, and
a block is one contiguous piece, so copying one stays a memcpy.
"""

import torch

from pagefleet.engine.kernels.interface import AttentionBatch, AttentionShape


class TokenMajorCache:
    """Hold keys and values of all layers."""

    def __init__(self, shape: AttentionShape, blocks_total: int) -> None:
        size = (blocks_total, shape.block_size, shape.kv_heads, shape.head_dim)
        # zeros() takes fresh pages from the system, so memory is used only as blocks are.
        self.keys = [torch.zeros(size, dtype=shape.cache_dtype, device=shape.device) for _ in range(shape.layers)]
        self.values = [torch.zeros(size, dtype=shape.cache_dtype, device=shape.device) for _ in range(shape.layers)]

    def store(self, layer: int, batch: AttentionBatch, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write [tokens, kv_heads, head_dim] keys and values to the batch's slots."""
        for cache, rows in ((self.keys[layer], key), (self.values[layer], value)):
            cache.view(-1, *cache.shape[2:]).index_copy_(0, batch.slots, rows.to(cache.dtype))

    def zero(self, blocks: list[int]) -> None:
        """Clear the blocks in all layers."""
        index = torch.tensor(blocks, dtype=torch.int64, device=self.keys[0].device)
        for cache in (*self.keys, *self.values):
            cache.index_fill_(0, index, 0)
