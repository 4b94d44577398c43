"""4-bit weights: the packed form that all back ends and checkpoint formats share, and what it stands for.

A weight of [outputs, inputs] is kept as

    words   int32   [outputs, inputs / 8]       number p of word k is (word >> 4 * p) & 15, of place 8 * k + p
    scales  float32 [outputs, groups]
    zeros   uint8   [outputs, groups]           0 to 16: GPTQ's first format adds 1 to what 4 bits hold
    order   int64   [inputs] or None            place i of a row of `words` multiplies input order[i], or input i

and stands for (number - zero) * scale, with the scale and zero point of the group of neighbouring places that it lies
in. Groups of 128 take 4.3125 bits a weight. Inputs are not rounded: weights become float32 in registers or by panels.
"""

from dataclasses import dataclass, replace

import torch

LEVELS = 15
"""The largest 4-bit number."""

PER_WORD = 8

PANEL_VALUES = 1 << 22
"""Weights that are held in floats at once where a matrix is worked on in torch."""


@dataclass(frozen=True)
class Int4Weight:
    """Hold a weight as the module says."""

    words: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    order: torch.Tensor | None = None

    @property
    def outputs(self) -> int:
        """Return the rows."""
        return self.words.shape[0]

    @property
    def inputs(self) -> int:
        """Return the columns."""
        return self.words.shape[1] * PER_WORD

    @property
    def nbytes(self) -> int:
        """Return the bytes of all parts."""
        order = 0 if self.order is None else self.order.nbytes
        return self.words.nbytes + self.scales.nbytes + self.zeros.nbytes + order

    def to(self, device: torch.device) -> "Int4Weight":
        """Return the weight on a device."""
        order = None if self.order is None else self.order.to(device)
        return Int4Weight(self.words.to(device), self.scales.to(device), self.zeros.to(device), order)

    def rows(self, which: slice | torch.Tensor) -> "Int4Weight":
        """Return some outputs, in any order."""
        return replace(self, words=self.words[which], scales=self.scales[which], zeros=self.zeros[which])


def pack_numbers(numbers: torch.Tensor) -> torch.Tensor:
    """Pack [outputs, inputs] integers from 0 to 15 into int32 words."""
    by_word = numbers.to(torch.int32).view(*numbers.shape[:-1], -1, PER_WORD)
    words: torch.Tensor = by_word[..., 0].clone()
    for place in range(1, PER_WORD):
        words |= by_word[..., place] << (4 * place)
    return words


def unpack_words(words: torch.Tensor) -> torch.Tensor:
    """Return the [outputs, inputs] numbers of int32 words, as uint8."""
    shifts = torch.arange(0, 4 * PER_WORD, 4, dtype=torch.int32, device=words.device)
    numbers: torch.Tensor = (words[..., None] >> shifts) & LEVELS
    return numbers.to(torch.uint8).flatten(-2)


def dequantize(weight: Int4Weight) -> torch.Tensor:
    """Return the float32 [outputs, inputs] weight, its inputs in the places that the model knows."""
    numbers = unpack_words(weight.words).float().view(*weight.scales.shape, -1)
    values = ((numbers - weight.zeros[..., None].float()) * weight.scales[..., None]).flatten(-2)
    if weight.order is None:
        return values
    placed = torch.empty_like(values)
    placed[:, weight.order] = values
    return placed
