"""Root-mean-square normalisation (arXiv 1910.07467)."""

from collections.abc import Callable

import torch

RmsNorm = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
"""Takes [tokens, hidden], the weight and epsilon."""


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Normalise the last dimension in float32, round, then scale: transformers' order, so bfloat16 rounds alike."""
    if hidden.dtype == torch.float32:
        return torch.nn.functional.rms_norm(hidden, (hidden.shape[-1],), weight, epsilon)
    wide = hidden.float()
    normalised = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return weight * normalised.to(hidden.dtype)
