"""Root-mean-square normalisation (arXiv 1910.07467)."""

from collections.abc import Callable

import torch

RmsNorm = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
"""Takes [tokens, hidden], the weight and epsilon."""


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Normalise the last dimension in float32 and scale it, rounding where transformers does.

    A weight in the compute dtype scales what is rounded already (Llama), a float32 weight before rounding (Gemma).
    """
    if hidden.dtype == torch.float32:
        return torch.nn.functional.rms_norm(hidden, (hidden.shape[-1],), weight, epsilon)
    wide = hidden.float()
    normalised = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    if weight.dtype == torch.float32:
        return (normalised * weight).to(hidden.dtype)
    return weight * normalised.to(hidden.dtype)
