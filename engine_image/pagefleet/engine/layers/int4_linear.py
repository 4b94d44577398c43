"""Linears over 4-bit weights in torch: what a checkpoint is loaded as, and the twin of faster kernels."""

import logging
from dataclasses import dataclass

import torch
from torch.nn.functional import linear

from pagefleet.engine.layers.int4 import PANEL_VALUES, Int4Weight, dequantize
from pagefleet.engine.layers.linear import Linear, fuse, gate_and_multiply

logger = logging.getLogger(__name__)


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


def fuse_linears(parts: list[Linear], *, is_gated: bool = False) -> Linear:
    """Stack linears over the same input, as `fuse` does; they stay packed where all are, in one order of inputs."""
    kernels = [part.kernel for part in parts if isinstance(part.kernel, TorchInt4Linear)]
    if not kernels:
        return fuse(parts, is_gated=is_gated)
    first = kernels[0].weight
    if len(kernels) < len(parts) or not all(_fit_together(first, kernel.weight) for kernel in kernels):
        logger.warning(
            "layers that read the same input are packed differently and become %s: %d of %d are 4-bit",
            *(kernels[0].dtype, len(kernels), len(parts)),
        )
        return fuse([_plain(part) for part in parts], is_gated=is_gated)
    weight = Int4Weight(
        torch.cat([kernel.weight.words for kernel in kernels]),
        torch.cat([kernel.weight.scales for kernel in kernels]),
        torch.cat([kernel.weight.zeros for kernel in kernels]),
        first.order,
    )
    biases = [kernel.bias for kernel in kernels if kernel.bias is not None]
    kernel = TorchInt4Linear(weight, torch.cat(biases) if biases else None, kernels[0].dtype)
    return Linear(None, is_gated=is_gated, kernel=kernel)


def _fit_together(one: Int4Weight, other: Int4Weight) -> bool:
    if one.scales.shape[1] != other.scales.shape[1] or (one.order is None) != (other.order is None):
        return False
    return one.order is None or other.order is None or torch.equal(one.order, other.order)


def _plain(part: Linear) -> Linear:
    kernel = part.kernel
    if not isinstance(kernel, TorchInt4Linear):
        return part
    return Linear(dequantize(kernel.weight).to(kernel.dtype), kernel.bias)
