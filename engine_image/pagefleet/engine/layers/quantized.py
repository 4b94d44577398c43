"""Linears over 8-bit weights: rounded output by output, inputs token by token; the reference that kernels equal.

A number is its integer times the scale of its row (LLM.int8's vector-wise scheme, arXiv 2208.07339, without its outlier
columns). Weights are symmetric. Inputs are not: the 255 integers of a token cover its own range, because the outliers
that make steps wide are mostly on one side.
"""

from dataclasses import dataclass

import torch

from pagefleet.engine.layers.linear import gate_and_multiply

MOST = 127
"""The largest integer: -128 is left out, so that signs are treated alike."""

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


def quantize_rows(rows: torch.Tensor) -> QuantizedWeight:
    """Round each row of a [rows, numbers] tensor; one with a number that is not finite gets a scale that is not."""
    values = rows.float()
    largest = values.abs().amax(-1)
    steps = torch.where((largest > 0) & largest.isfinite(), MOST / largest, 0)[:, None]
    return QuantizedWeight((values * steps).nan_to_num(0).round().to(torch.int8), largest / MOST)


def quantize_inputs(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round [tokens, inputs] to int16, no two of a token more than 255 apart, and return it with [tokens] scales.

    0 stays 0. A token with a number that is not finite gets a scale that is not.
    """
    values = rows.float()
    width = values.amax(-1).clamp(min=0) - values.amin(-1).clamp(max=0)
    steps = torch.where((width > 0) & width.isfinite(), STEPS / width, 0)[:, None]
    return (values * steps).nan_to_num(0).round().to(torch.int16), width / STEPS


class TorchInt8Linear:
    """Multiply rounded rows with a rounded weight in torch: on any CPU, and slowly."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = quantize_rows(weight)
        self._bias = bias
        self._dtype = weight.dtype

    @property
    def nbytes(self) -> int:
        """Return the bytes of the weight and bias."""
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Map [tokens, inputs] to [tokens, outputs]."""
        return self.wide(rows).to(self._dtype)

    def wide(self, rows: torch.Tensor) -> torch.Tensor:
        """Map to float32."""
        integers, scales = quantize_inputs(rows)
        # Sums of products of bytes are whole numbers below 2^53: float64 has them all.
        sums = (integers.double() @ self._weight.integers.double().T).float()
        scaled = sums * (self._weight.scales * scales[:, None])
        return scaled if self._bias is None else scaled + self._bias.float()

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return residual plus the product."""
        return residual + self(rows)

    def swiglu(self, rows: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up."""
        return gate_and_multiply(self(rows))
