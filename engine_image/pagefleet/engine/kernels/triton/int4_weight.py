"""4-bit weights as the GPU reads them, made of numbers, scales and zero points; and their product in torch.

A byte holds two numbers half a group apart, and outputs are neighbours in memory: a tile's bytes are one run for each
place, and its low and high halves are multiplied with two runs of inputs.
"""

from dataclasses import dataclass

import torch

GROUP = 128
"""Inputs that share a scale and a zero point."""


@dataclass(frozen=True)
class GpuInt4Weight:
    """Hold a weight: (number - zero) * scale."""

    pairs: torch.Tensor
    """[groups, GROUP / 2, outputs] uint8: byte p of a group holds place p and, above it, place p + GROUP / 2."""
    scales: torch.Tensor
    """[groups, outputs] float32."""
    zeros: torch.Tensor
    """[groups, outputs] uint8, 0 to 16."""

    @property
    def outputs(self) -> int:
        """Return the columns of the product."""
        return self.pairs.shape[2]

    @property
    def inputs(self) -> int:
        """Return the length of a row."""
        return self.pairs.shape[0] * GROUP

    @property
    def nbytes(self) -> int:
        """Return the bytes of all parts."""
        return self.pairs.nbytes + self.scales.nbytes + self.zeros.nbytes


def pack_for_gpu(numbers: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> GpuInt4Weight:
    """Pack [outputs, inputs] integers from 0 to 15 with scales and zero points of [outputs, groups].

    Raises ValueError when groups are not of 128 inputs.
    """
    outputs, inputs = numbers.shape
    if inputs != GROUP * scales.shape[1]:
        raise ValueError(f"groups must be of {GROUP} inputs; {scales.shape[1]} groups of {inputs} inputs are not")
    grouped = numbers.to(torch.uint8).view(outputs, -1, GROUP)
    low, high = grouped[..., : GROUP // 2], grouped[..., GROUP // 2 :]
    pairs = (low | high << 4).permute(1, 2, 0).contiguous()
    return GpuInt4Weight(pairs, scales.float().t().contiguous(), zeros.to(torch.uint8).t().contiguous())


def dequantize(weight: GpuInt4Weight) -> torch.Tensor:
    """Return the float32 [outputs, inputs] weight."""
    numbers = torch.cat([weight.pairs & 15, weight.pairs >> 4], dim=1).float()
    values = (numbers - weight.zeros.float()[:, None]) * weight.scales[:, None]
    return values.flatten(0, 1).t()


def multiply_in_torch(rows: torch.Tensor, weight: GpuInt4Weight) -> torch.Tensor:
    """Map [tokens, inputs] to [tokens, outputs] of the same type: the kernel's twin."""
    return (rows.float() @ dequantize(weight).t()).to(rows.dtype)
