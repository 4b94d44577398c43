"""Rotary position embedding in the rotate-half form of transformers (arXiv 2104.09864)."""

from dataclasses import dataclass
from typing import NamedTuple

import torch


class RotaryTable(NamedTuple):
    """Hold the rotation of each row: both [tokens, 1, head_dim], in the compute dtype."""

    cosine: torch.Tensor
    sine: torch.Tensor


@dataclass(frozen=True, eq=False)
class RotaryEmbedding:
    """Turn positions into rotations; dimensions that a model leaves alone have frequency 0 and scale 1."""

    inverse_frequencies: torch.Tensor
    """[head_dim / 2] float32."""
    scale: torch.Tensor
    """[head_dim / 2] float32: multiplies cosine and sine."""

    def to(self, device: torch.device) -> "RotaryEmbedding":
        """Return the embedding on a device."""
        return RotaryEmbedding(self.inverse_frequencies.to(device), self.scale.to(device))

    def table(self, positions: torch.Tensor, dtype: torch.dtype) -> RotaryTable:
        """Return the rotations of [tokens] positions."""
        angles = positions[:, None, None].float() * self.inverse_frequencies
        cosine, sine = (angles.cos() * self.scale).to(dtype), (angles.sin() * self.scale).to(dtype)
        return RotaryTable(torch.cat((cosine, cosine), dim=-1), torch.cat((sine, sine), dim=-1))


def rotate(heads: torch.Tensor, table: RotaryTable) -> torch.Tensor:
    """Rotate [tokens, heads, head_dim]: pairs are (i, i + head_dim / 2)."""
    half = heads.shape[-1] // 2
    swapped = torch.cat((-heads[..., half:], heads[..., :half]), dim=-1)
    return heads * table.cosine + swapped * table.sine


def full_width_order(head_dim: int, rotary_dim: int) -> list[int]:
    """Order a head's dimensions so that rotating the first `rotary_dim` of them becomes a rotation of all.

    Entry `j` is the dimension that goes to place `j`. Queries and keys in the same order have the same products, so a
    model that rotates part of each head needs no other kernel, only its weights' rows in this order.
    """
    rotated, rest = rotary_dim // 2, (head_dim - rotary_dim) // 2
    first, second = range(rotated), range(rotated, rotary_dim)
    kept = range(rotary_dim, head_dim)
    return [*first, *kept[:rest], *second, *kept[rest:]]
