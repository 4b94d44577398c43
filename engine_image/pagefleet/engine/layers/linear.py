"""Linear layers over fused weights."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import linear, silu


class LinearKernel(Protocol):
    """Compute what a `Linear` does, over its own packed copy of the weight."""

    @property
    def nbytes(self) -> int:
        """Return the bytes of the packed weight and bias."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Map [tokens, inputs] to [tokens, outputs]."""

    def wide(self, rows: torch.Tensor) -> torch.Tensor:
        """Map as `__call__`, to float32."""

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return residual plus the product; may write into `residual`."""

    def swiglu(self, rows: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up, [tokens, outputs / 2], of a gated linear."""


@dataclass
class Linear:
    """Hold one weight, [outputs, inputs], and its bias; or a kernel that has taken them over."""

    weight: torch.Tensor | None
    bias: torch.Tensor | None = None
    is_gated: bool = False
    """The first half of the outputs gates the second: `swiglu` is what is called, and kernels may interleave them."""
    kernel: LinearKernel | None = None

    @property
    def nbytes(self) -> int:
        """Return the bytes of weight and bias."""
        if self.kernel is not None:
            return self.kernel.nbytes
        return sum(tensor.nbytes for tensor in (self.weight, self.bias) if tensor is not None)

    def use(self, kernel: LinearKernel) -> None:
        """Compute with the kernel from here on, and let go of the plain weight."""
        self.kernel = kernel
        self.weight = self.bias = None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Map [tokens, inputs] to [tokens, outputs]."""
        if self.kernel is not None:
            return self.kernel(rows)
        assert self.weight is not None  # noqa: S101 - a linear without kernel keeps its weight
        return linear(rows, self.weight, self.bias)

    def wide(self, rows: torch.Tensor) -> torch.Tensor:
        """Map as `__call__`, to float32."""
        return self(rows).float() if self.kernel is None else self.kernel.wide(rows)

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return residual plus the product; may write into `residual`, so use only the result."""
        return residual + self(rows) if self.kernel is None else self.kernel.add_to(residual, rows)

    def swiglu(self, rows: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up, [tokens, outputs / 2] (arXiv 2002.05202)."""
        return gate_and_multiply(self(rows)) if self.kernel is None else self.kernel.swiglu(rows)


def gate_and_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    """Map [tokens, gate then up] to silu(gate) * up."""
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate) * up


def fuse(parts: list[Linear], *, is_gated: bool = False) -> Linear:
    """Stack linears over the same input, so that one matrix product reads the input once.

    Either all parts have a bias or none has.
    """
    weights = [part.weight for part in parts if part.weight is not None]
    biases = [part.bias for part in parts if part.bias is not None]
    return Linear(torch.cat(weights), torch.cat(biases) if biases else None, is_gated=is_gated)
