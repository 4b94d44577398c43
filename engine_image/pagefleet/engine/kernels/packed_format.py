"""How keys and values are rounded to few bits: the numbers that every back end must store, whatever its layout.

Keys are rounded per channel of a block, because some channels are far larger than others in all tokens (KIVI, arXiv
2402.02750); values per token and head after a Hadamard rotation, which spreads outliers over all channels (QuaRot,
arXiv 2404.00456). A block is packed once, when it is full. What is not packed is *plain*, in the compute dtype: the
first tokens of a sequence (sinks, which nearly all attention looks at) and the block that a query itself lies in.

So a query at position p reads block `p // block_size` plain, the first `SINK_TOKENS` plain, and all else packed. That
depends on positions alone: chunks, batches and prefix hits cannot change what a query sees.
"""

import math
from dataclasses import dataclass

import torch

from pagefleet.capacity.kv_formats import KEY_METADATA_BITS, KV_FORMATS, VALUE_METADATA_BITS

KEY_METADATA_BYTES = KEY_METADATA_BITS // 8
"""Of a channel in a block: a scale's code and the least key as bfloat16, which holds biases a hundred ranges away."""

VALUE_METADATA_BYTES = VALUE_METADATA_BITS // 8
"""Of a token's head: a scale's code, and the middle in halves of the scale."""

SCALE_STEPS = 8
"""Scales per octave."""

LEAST_SCALE_EXPONENT = -20
"""Code 0 stands for 2 ** -20, code 255 for nearly 2 ** 12."""

_STEPS = torch.tensor([2 ** (step / SCALE_STEPS) for step in range(SCALE_STEPS)], dtype=torch.float32)
SCALES = torch.cat([_STEPS * 2.0**exponent for exponent in range(LEAST_SCALE_EXPONENT, LEAST_SCALE_EXPONENT + 32)])
"""[256] float32, by code. Eight float32 steps times exact powers of two, so that every back end has the same."""


@dataclass(frozen=True, kw_only=True)
class PackedFormat:
    """Describe a packed cache format."""

    name: str
    key_bits: int
    value_bits: int

    def bytes_per_head(self, block_size: int, head_dim: int) -> int:
        """Return the bytes of one head's keys and values in one block of one layer, metadata included."""
        numbers = block_size * head_dim * (self.key_bits + self.value_bits) // 8
        return numbers + head_dim * KEY_METADATA_BYTES + block_size * VALUE_METADATA_BYTES


PACKED_FORMATS = {
    name: PackedFormat(name=name, key_bits=kept.key_bits, value_bits=kept.value_bits)
    for name, kept in KV_FORMATS.items()
    if kept.is_quantized
}
"""By the word of `--kv-cache-dtype`, as the planner knows them."""


@dataclass(frozen=True)
class PackedKeys:
    """Rounded keys of whole blocks: key = least + scale * code."""

    codes: torch.Tensor
    """[blocks, tokens, heads, head_dim] uint8."""
    scales: torch.Tensor
    """[blocks, heads, head_dim] uint8 codes of `SCALES`."""
    least: torch.Tensor
    """[blocks, heads, head_dim] bfloat16."""

    def plain(self) -> torch.Tensor:
        """Return the keys as float32."""
        scale = _scales_of(self.scales)
        plain: torch.Tensor = self.least.float()[:, None] + scale[:, None] * self.codes.float()
        return plain


@dataclass(frozen=True)
class PackedValues:
    """Rounded values, already rotated: value = scale / 2 * (2 * code - levels + middle)."""

    codes: torch.Tensor
    """[blocks, tokens, heads, head_dim] uint8."""
    scales: torch.Tensor
    """[blocks, tokens, heads] uint8 codes of `SCALES`."""
    middles: torch.Tensor
    """[blocks, tokens, heads] int8."""

    def plain(self, bits: int) -> torch.Tensor:
        """Return the rotated values as float32."""
        halves = 2 * self.codes.int() - (2**bits - 1) + self.middles.int()[..., None]
        plain: torch.Tensor = halves.float() * (_scales_of(self.scales) / 2)[..., None]
        return plain


def pack_keys(keys: torch.Tensor, bits: int) -> PackedKeys:
    """Round full blocks of keys, [blocks, tokens, heads, head_dim]."""
    keys = keys.float()
    low, high = keys.aminmax(dim=1)
    least = _rounded_down(low)
    scales = scale_codes((high - least.float()) / (2**bits - 1))
    scale = _scales_of(scales)
    codes = torch.round((keys - least.float()[:, None]) / scale[:, None])
    return PackedKeys(codes.clamp_(0, 2**bits - 1).to(torch.uint8), scales, least)


def pack_values(values: torch.Tensor, bits: int) -> PackedValues:
    """Round rotated values, [blocks, tokens, heads, head_dim]."""
    values, levels = values.float(), 2**bits - 1
    low, high = values.aminmax(dim=-1)
    twice_middle = low + high
    scales = scale_codes(torch.maximum((high - low) / levels, twice_middle.abs() / 127))
    scale = _scales_of(scales)
    middles = torch.round(twice_middle / scale).clamp_(-127, 127)
    first = (scale * (middles - levels) / 2)[..., None]
    codes = torch.round((values - first) / scale[..., None])
    return PackedValues(codes.clamp_(0, levels).to(torch.uint8), scales, middles.to(torch.int8))


def scale_codes(scales: torch.Tensor) -> torch.Tensor:
    """Return the codes, uint8, of the least scales of the grid that are no smaller; the largest where none is."""
    return torch.bucketize(scales, SCALES.to(scales.device)).clamp_(max=len(SCALES) - 1).to(torch.uint8)


def join_bits(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Return uint8 [..., size * bits / 8] of the codes [..., size] of 8, 4 or 3 bits; size is a multiple of 8.

    The numbers of a byte lie far apart, so that one shift gives a run of neighbours. 4 bits: byte j holds j and, above
    it, j + size/2. 3 bits: first the low two bits, four to a byte, size/4 apart; then the high bits, eight to a byte.
    """
    if bits == 8:
        return codes
    if bits == 4:
        return _stripe(codes, 4)
    return torch.cat([_stripe(codes & 3, 2), _stripe(codes >> 2, 1)], dim=-1)


def split_bits(stored: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the codes that `join_bits` was given."""
    if bits == 8:
        return stored
    if bits == 4:
        return _unstripe(stored, 4)
    low_bytes = stored.shape[-1] * 2 // 3
    return _unstripe(stored[..., :low_bytes], 2) | _unstripe(stored[..., low_bytes:], 1) << 2


def _stripe(codes: torch.Tensor, bits: int) -> torch.Tensor:
    parts = codes.chunk(8 // bits, dim=-1)
    joined = parts[0].clone()
    for place, part in enumerate(parts[1:], start=1):
        joined |= part << place * bits
    return joined


def _unstripe(stored: torch.Tensor, bits: int) -> torch.Tensor:
    mask = 2**bits - 1
    return torch.cat([stored >> place * bits & mask for place in range(8 // bits)], dim=-1)


def rotation(head_dim: int, device: torch.device | None = None) -> torch.Tensor:
    """Return the symmetric [head_dim, head_dim] Hadamard rotation, which is its own inverse.

    A head size that is no power of two is rotated in runs of the largest power of two that divides it.
    """
    run = head_dim & -head_dim
    matrix = torch.ones(1, 1)
    while len(matrix) < run:
        matrix = torch.cat([torch.cat([matrix, matrix], dim=1), torch.cat([matrix, -matrix], dim=1)])
    runs = torch.eye(head_dim // run)
    return torch.kron(runs, matrix / math.sqrt(run)).to(device)


def _scales_of(codes: torch.Tensor) -> torch.Tensor:
    return SCALES.to(codes.device).index_select(0, codes.int().flatten()).view(codes.shape)


def _rounded_down(numbers: torch.Tensor) -> torch.Tensor:
    """Return the largest bfloat16 that is no larger; keys that are not finite stay so."""
    nearest = numbers.to(torch.bfloat16)
    bits = nearest.view(torch.int16)
    # Bit patterns count up away from zero; below +0 lies the smallest negative number.
    below = torch.where(nearest > 0, bits - 1, torch.where(nearest < 0, bits + 1, torch.full_like(bits, -32767)))
    return torch.where(nearest.float() > numbers, below.view(torch.bfloat16), nearest)
