"""Linears over 4-bit weights in torch: what a checkpoint is loaded as, and the twin of faster kernels."""

from dataclasses import dataclass

import torch
from torch.nn.functional import linear

from pagefleet.engine.layers.int4 import PANEL_VALUES, Int4Weight, dequantize
from pagefleet.engine.layers.linear import gate_and_multiply


@dataclass(frozen=True)
class TorchInt4Linear:
    """Multiply in torch, a panel of the weight at a time: on any device, and slowly."""

    weight: Int4Weight
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
        values = rows.float()
        step = max(1, PANEL_VALUES // self.weight.inputs)
        panels = [
            linear(values, dequantize(self.weight.rows(slice(first, first + step))))
            for first in range(0, self.weight.outputs, step)
        ]
        product = torch.cat(panels, dim=-1)
        return product if self.bias is None else product + self.bias.float()

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return residual plus the product."""
        return residual + self(rows)

    def swiglu(self, rows: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up."""
        return gate_and_multiply(self(rows))
