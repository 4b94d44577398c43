"""The KV cache of the C kernels: keys transposed in units of 16 tokens, values row by row.

Per layer `[blocks, kv_heads, block_size / 16, 16 * head_dim]`. Inside a unit keys are `[head_dim / p][16][p]` and
values `[16 / p][head_dim][p]`, where p is 1 in float32 and 2 in bfloat16: a score vector is a run of tokens, without a
sum over lanes, and both sides are in the order in which pairs of bfloat16 are multiplied. A block stays one contiguous
piece.
"""

import torch

from pagefleet.engine.kernels.cache import BlockCache
from pagefleet.engine.kernels.interface import AttentionShape

UNIT_TOKENS = 16


class UnitCache(BlockCache):
    """Lay blocks out in units for vectors."""

    def __init__(self, shape: AttentionShape, blocks_total: int) -> None:
        units = shape.block_size // UNIT_TOKENS
        super().__init__(shape, blocks_total, (shape.kv_heads, units, UNIT_TOKENS * shape.head_dim))
        self._shape = shape

    def token_major(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of keys and values as [blocks, block_size, kv_heads, head_dim]: what the layout means."""
        shape = self._shape
        pair = 4 // shape.cache_dtype.itemsize
        outer = (-1, shape.kv_heads, shape.block_size // UNIT_TOKENS)
        keys = self.keys[layer].view(*outer, shape.head_dim // pair, UNIT_TOKENS, pair).permute(0, 2, 4, 1, 3, 5)
        values = self.values[layer].view(*outer, UNIT_TOKENS // pair, shape.head_dim, pair).permute(0, 2, 3, 5, 1, 4)
        result = (-1, shape.block_size, shape.kv_heads, shape.head_dim)
        return keys.reshape(result), values.reshape(result)
