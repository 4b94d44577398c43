"""Linear layers over fused weights."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Linear:
    """Hold one weight, [outputs, inputs], and its bias."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Map [tokens, inputs] to [tokens, outputs]."""
        return torch.nn.functional.linear(rows, self.weight, self.bias)


def fuse(parts: list[Linear]) -> Linear:
    """Stack linears over the same input, so that one matrix product reads the input once.

    Either all parts have a bias or none has.
    """
    biases = [part.bias for part in parts if part.bias is not None]
    return Linear(torch.cat([part.weight for part in parts]), torch.cat(biases) if biases else None)
