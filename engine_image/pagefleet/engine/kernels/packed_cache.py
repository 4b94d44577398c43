"""The packed KV cache of the torch back end: rounded blocks token by token, and a pool of plain ones."""

import torch

from pagefleet.engine.kernels.cache import TokenMajorCache, zeroed
from pagefleet.engine.kernels.interface import AttentionShape
from pagefleet.engine.kernels.packed_format import (
    PackedFormat,
    PackedKeys,
    PackedValues,
    join_bits,
    pack_keys,
    pack_values,
    split_bits,
)


class PackedCache:
    """Hold keys and rotated values of all layers."""

    def __init__(self, shape: AttentionShape, packed: PackedFormat, blocks_total: int, plain_slots: int) -> None:
        self._packed = packed
        self.plain = TokenMajorCache(shape, plain_slots)
        layers, heads, head_dim, block = shape.layers, shape.kv_heads, shape.head_dim, shape.block_size
        outer = (layers, blocks_total)

        def pool(*inner: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
            return zeroed((*outer, *inner), dtype, shape.device)

        self._key_codes = pool(block, heads, head_dim * packed.key_bits // 8)
        self._key_scales = pool(heads, head_dim)
        self._key_least = pool(heads, head_dim, dtype=torch.bfloat16)
        self._value_codes = pool(block, heads, head_dim * packed.value_bits // 8)
        self._value_scales = pool(block, heads)
        self._value_middles = pool(block, heads, dtype=torch.int8)
        self._pools = (
            self._key_codes,
            self._key_scales,
            self._key_least,
            self._value_codes,
            self._value_scales,
            self._value_middles,
        )

    @property
    def bytes_per_block(self) -> int:
        """Return what one packed block takes over all layers."""
        return sum(pool[:, 0].nbytes for pool in self._pools)

    def zero(self, blocks: list[int], plain_slots: list[int]) -> None:
        """Clear blocks and slots in all layers."""
        for pool in self._pools:
            pool[:, blocks] = 0
        self.plain.zero(plain_slots)

    def pack(self, layer: int, slots: torch.Tensor, blocks: torch.Tensor) -> None:
        """Round what these plain slots hold into the blocks."""
        keys = pack_keys(self.plain.keys[layer][slots], self._packed.key_bits)
        values = pack_values(self.plain.values[layer][slots], self._packed.value_bits)
        self._key_codes[layer, blocks] = join_bits(keys.codes, self._packed.key_bits)
        self._key_scales[layer, blocks] = keys.scales
        self._key_least[layer, blocks] = keys.least
        self._value_codes[layer, blocks] = join_bits(values.codes, self._packed.value_bits)
        self._value_scales[layer, blocks] = values.scales
        self._value_middles[layer, blocks] = values.middles

    def unpack(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the blocks' keys and rotated values, [blocks, block_size, heads, head_dim] float32."""
        keys = PackedKeys(
            split_bits(self._key_codes[layer, blocks], self._packed.key_bits),
            self._key_scales[layer, blocks],
            self._key_least[layer, blocks],
        )
        values = PackedValues(
            split_bits(self._value_codes[layer, blocks], self._packed.value_bits),
            self._value_scales[layer, blocks],
            self._value_middles[layer, blocks],
        )
        return keys.plain(), values.plain(self._packed.value_bits)
