"""Linears over 8-bit weights: rounded output by output, inputs group by group; the reference that kernels equal.

A number is its integer times the scale of its output or group. Weights are symmetric. Inputs are not: the 255 integers
of 128 neighbouring inputs of a token cover their own range, because outliers, which make steps wide, are few and mostly
on one side.
"""

from dataclasses import dataclass

import torch

from pagefleet.engine.layers.linear import gate_and_multiply

MOST = 127
"""The largest integer: -128 is left out, so that signs are treated alike."""

INPUT_GROUP = 128
"""Inputs of a token that share a scale. Sums of a group's products stay below 2^24, so float32 has them exactly."""

STEPS = 254
"""From an input's least to its largest integer; one less than bytes have, as both ends may be rounded outwards."""


@dataclass(frozen=True)
class QuantizedWeight:
    """Hold [outputs, inputs] int8 and the float32 scale of each output."""

    integers: torch.Tensor
    scales: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Return the bytes of integers and scales."""
        return self.integers.nbytes + self.scales.nbytes

    def values(self) -> torch.Tensor:
        """Return the float32 weight."""
        return self.integers.float() * self.scales[:, None]

    def rows(self, which: torch.Tensor) -> "QuantizedWeight":
        """Return some outputs, in any order."""
        return QuantizedWeight(self.integers[which], self.scales[which])

    def to(self, device: torch.device) -> "QuantizedWeight":
        """Return the weight on a device."""
        return QuantizedWeight(self.integers.to(device), self.scales.to(device))


def quantize_rows(rows: torch.Tensor) -> QuantizedWeight:
    """Round each row of a [rows, numbers] tensor; one with a number that is not finite gets a scale that is not."""
    values = rows.float()
    largest = values.abs().amax(-1)
    steps = torch.where((largest > 0) & largest.isfinite(), MOST / largest, 0)[:, None]
    return QuantizedWeight((values * steps).nan_to_num(0).round().to(torch.int8), largest / MOST)


def quantize_inputs(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round a group, [tokens, inputs], to int16, no two of a token more than 255 apart; return it with [tokens] scales.

    0 stays 0. A token with a number that is not finite gets a scale that is not.
    """
    values = rows.float()
    width = values.amax(-1).clamp(min=0) - values.amin(-1).clamp(max=0)
    steps = torch.where((width > 0) & width.isfinite(), STEPS / width, 0)[:, None]
    return (values * steps).nan_to_num(0).round().to(torch.int16), width / STEPS


@dataclass(frozen=True)
class TorchInt8Linear:
    """Multiply rounded rows with a rounded weight in torch: on any device, and slowly."""

    weight: QuantizedWeight
    bias: torch.Tensor | None
    dtype: torch.dtype
    """Of the outputs."""

    @property
    def nbytes(self) -> int:
        """Return the bytes of the weight and bias."""
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Map [tokens, inputs] to [tokens, outputs]."""
        return self.wide(rows).to(self.dtype)

    def wide(self, rows: torch.Tensor) -> torch.Tensor:
        """Map to float32."""
        product = torch.zeros(len(rows), len(self.weight.integers), device=rows.device)
        groups = (torch.split(whole, INPUT_GROUP, dim=-1) for whole in (rows, self.weight.integers))
        for inputs, weights in zip(*groups, strict=True):
            integers, scales = quantize_inputs(inputs)
            product += (integers.float() @ weights.float().T) * scales[:, None]
        scaled = product * self.weight.scales
        return scaled if self.bias is None else scaled + self.bias.float()

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return residual plus the product."""
        return residual + self(rows)

    def swiglu(self, rows: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up."""
        return gate_and_multiply(self(rows))
