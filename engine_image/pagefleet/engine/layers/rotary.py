"""Rotary position embedding in the rotate-half form of transformers (arXiv 2104.09864)."""

from typing import NamedTuple

import torch


class RotaryTable(NamedTuple):
    """Hold the rotation of each row: both [tokens, 1, head_dim], in the compute dtype."""

    cosine: torch.Tensor
    sine: torch.Tensor


def rotate(heads: torch.Tensor, table: RotaryTable) -> torch.Tensor:
    """Rotate [tokens, heads, head_dim]: pairs are (i, i + head_dim / 2)."""
    half = heads.shape[-1] // 2
    swapped = torch.cat((-heads[..., half:], heads[..., :half]), dim=-1)
    return heads * table.cosine + swapped * table.sine
