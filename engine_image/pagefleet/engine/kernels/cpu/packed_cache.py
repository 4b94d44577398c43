"""The packed KV cache of the C kernels: one record of bytes per block and KV head, and a pool of plain blocks.

A record holds, one after the other, the codes of the keys `[units, head_dim, 16]`, a scale's code and the least key
(bfloat16) of each channel, the codes of the values `[units, 16, head_dim]`, a scale's code and the middle (int8) of
each token. Eight neighbouring codes are as many bytes as they have bits: code i begins at bit `i * bits`. So a vector
of codes is one short load and, below 8 bits, a shift by another count in each lane.
"""

import torch

from pagefleet.engine.kernels.cache import zeroed
from pagefleet.engine.kernels.cpu.cache import UNIT_TOKENS, UnitCache
from pagefleet.engine.kernels.interface import AttentionShape
from pagefleet.engine.kernels.packed_format import (
    KEY_METADATA_BYTES,
    VALUE_METADATA_BYTES,
    PackedFormat,
    PackedKeys,
    PackedValues,
)

RUN_CODES = 8


class PackedUnitCache:
    """Hold keys and rotated values of all layers."""

    def __init__(self, shape: AttentionShape, packed: PackedFormat, blocks_total: int, plain_slots: int) -> None:
        self._shape, self._packed = shape, packed
        self.plain = UnitCache(shape, plain_slots)
        record_bytes = packed.bytes_per_head(shape.block_size, shape.head_dim)
        pool = zeroed((shape.layers, blocks_total, shape.kv_heads, record_bytes), torch.uint8, shape.device)
        self.records = list(pool)
        """Per layer [blocks, kv_heads, record_bytes]."""

    def zero(self, blocks: list[int], plain_slots: list[int]) -> None:
        """Clear blocks and slots in all layers."""
        for records in self.records:
            records[blocks] = 0
        self.plain.zero(plain_slots)

    def token_major(self, layer: int) -> tuple[PackedKeys, PackedValues]:
        """Return copies of all blocks as packed_format.py has them: what the layout means."""
        shape, packed = self._shape, self._packed
        size, head_dim = shape.block_size, shape.head_dim
        units = size // UNIT_TOKENS
        key_codes, key_metadata, value_codes, value_metadata = self.records[layer].split(
            [
                size * head_dim * packed.key_bits // 8,
                head_dim * KEY_METADATA_BYTES,
                size * head_dim * packed.value_bits // 8,
                size * VALUE_METADATA_BYTES,
            ],
            dim=-1,
        )
        outer = (-1, shape.kv_heads, units)
        codes = _split_runs(key_codes, packed.key_bits).view(*outer, head_dim, UNIT_TOKENS).permute(0, 2, 4, 1, 3)
        keys = PackedKeys(
            codes.reshape(-1, size, shape.kv_heads, head_dim),
            key_metadata[..., :head_dim].clone(),
            key_metadata[..., head_dim:].contiguous().view(torch.bfloat16),
        )
        codes = _split_runs(value_codes, packed.value_bits).view(*outer, UNIT_TOKENS, head_dim).permute(0, 2, 3, 1, 4)
        scales, middles = value_metadata.transpose(1, 2).split(size, dim=1)
        values = PackedValues(
            codes.reshape(-1, size, shape.kv_heads, head_dim), scales.clone(), middles.contiguous().view(torch.int8)
        )
        return keys, values


def _split_runs(stored: torch.Tensor, bits: int) -> torch.Tensor:
    runs = stored.reshape(*stored.shape[:-1], -1, bits).long()
    joined = (runs << 8 * torch.arange(bits)).sum(dim=-1, keepdim=True)
    codes: torch.Tensor = joined >> bits * torch.arange(RUN_CODES) & 2**bits - 1
    return codes.to(torch.uint8).flatten(-2)
