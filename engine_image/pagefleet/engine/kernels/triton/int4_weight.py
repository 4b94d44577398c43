"""4-bit weights as the GPU reads them, made of the form that all back ends share; and their product in torch.

A byte holds two numbers half a group apart, and outputs are neighbours in memory: a tile's bytes are one run for each
place, and its low and high halves are multiplied with two runs of inputs.
"""

from dataclasses import dataclass

import torch

from pagefleet.engine.layers.int4 import PANEL_VALUES, Int4Weight, unpack_words

GROUPS = (128, 64, 32)
"""Inputs that may share a scale and a zero point here: two halves of what tensor cores multiply at once, or more."""


@dataclass(frozen=True)
class GpuInt4Weight:
    """Hold a weight: (number - zero) * scale."""

    pairs: torch.Tensor
    """[groups, group / 2, outputs] uint8: byte p of a group holds place p and, above it, place p + group / 2."""
    scales: torch.Tensor
    """[groups, outputs] float32."""
    zeros: torch.Tensor
    """[groups, outputs] uint8, 0 to 16."""

    @property
    def group(self) -> int:
        """Return the inputs of one group."""
        return self.pairs.shape[1] * 2

    @property
    def outputs(self) -> int:
        """Return the columns of the product."""
        return self.pairs.shape[2]

    @property
    def inputs(self) -> int:
        """Return the length of a row."""
        return self.pairs.shape[0] * self.group

    @property
    def nbytes(self) -> int:
        """Return the bytes of all parts."""
        return self.pairs.nbytes + self.scales.nbytes + self.zeros.nbytes


def gpu_group(weight: Int4Weight) -> int | None:
    """Return the group in which a weight can be kept, a part of its own or all of it; None when there is none."""
    group = weight.inputs // weight.scales.shape[1]
    return next((size for size in GROUPS if group % size == 0), None)


def pack_for_gpu(weight: Int4Weight) -> GpuInt4Weight:
    """Pack a weight, whose inputs stay in the places of its words; raises ValueError where no group divides its own."""
    group = gpu_group(weight)
    if group is None:
        own = weight.inputs // weight.scales.shape[1]
        raise ValueError(f"groups must be of multiples of {GROUPS[-1]} inputs; {own} is none")
    panel = max(1, PANEL_VALUES // weight.inputs)
    pairs = [_pairs(weight.words[first : first + panel], group) for first in range(0, weight.outputs, panel)]
    parts = weight.inputs // group // weight.scales.shape[1]
    scales, zeros = (each.repeat_interleave(parts, 1).t().contiguous() for each in (weight.scales, weight.zeros))
    return GpuInt4Weight(torch.cat(pairs, dim=2), scales, zeros)


def _pairs(words: torch.Tensor, group: int) -> torch.Tensor:
    grouped = unpack_words(words).view(len(words), -1, group)
    low, high = grouped[..., : group // 2], grouped[..., group // 2 :]
    return (low | high << 4).permute(1, 2, 0)


def dequantize(weight: GpuInt4Weight) -> torch.Tensor:
    """Return the float32 [outputs, inputs] weight."""
    numbers = torch.cat([weight.pairs & 15, weight.pairs >> 4], dim=1).float()
    values = (numbers - weight.zeros.float()[:, None]) * weight.scales[:, None]
    return values.flatten(0, 1).t()


def multiply_in_torch(rows: torch.Tensor, weight: GpuInt4Weight) -> torch.Tensor:
    """Map [tokens, inputs] to [tokens, outputs] of the same type: the kernel's twin."""
    return (rows.float() @ dequantize(weight).t()).to(rows.dtype)
