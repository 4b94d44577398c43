"""Layers rounded to 4 bits as checkpoints publish them: numbers, float16 scales and zero points."""

from dataclasses import dataclass

import torch

from pagefleet.engine.layers.int4 import PER_WORD, pack_numbers
from pagefleet.engine.layers.int4_rounding import best_ranges, nearest_numbers

AWQ_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of 8 neighbouring outputs AWQ keeps at each place of a word."""

LEAST_ZERO = 1
"""GPTQ stores zero points less 1, in 4 bits."""


@dataclass(frozen=True)
class RoundedLinear:
    """Hold [outputs, inputs] numbers from 0 to 15, and the [outputs, groups] scales and zero points."""

    numbers: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor

    def values(self) -> torch.Tensor:
        """Return the float32 weight."""
        by_group = self.numbers.float().view(*self.scales.shape, -1)
        return ((by_group - self.zeros[..., None].float()) * self.scales[..., None].float()).flatten(-2)

    def rows(self, sizes: list[int]) -> list["RoundedLinear"]:
        """Return parts of so many outputs each."""
        # Copies, because files refuse tensors that share memory.
        parts = (
            [part.clone() for part in torch.split(whole, sizes)] for whole in (self.numbers, self.scales, self.zeros)
        )
        return [RoundedLinear(*part) for part in zip(*parts, strict=True)]


def ranges_of(weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scales and zeros, [outputs, groups], that all formats can store."""
    values = weight.view(len(weight), -1, group)
    return best_ranges(values, scale_dtype=torch.float16, least_zero=LEAST_ZERO)


def round_to_nearest(weight: torch.Tensor, group: int) -> RoundedLinear:
    """Round a float32 [outputs, inputs] weight."""
    scales, zeros = ranges_of(weight, group)
    numbers = nearest_numbers(weight.view(*scales.shape, group), scales, zeros).flatten(-2)
    return RoundedLinear(numbers.to(torch.uint8), scales.half(), zeros.to(torch.uint8))


def gptq_tensors(rounded: RoundedLinear) -> dict[str, torch.Tensor]:
    """Return a layer's tensors in GPTQ's first format, which most programs read."""
    inputs, groups = rounded.numbers.shape[1], rounded.scales.shape[1]
    return {
        "qweight": pack_numbers(rounded.numbers).T.contiguous(),
        "qzeros": pack_numbers((rounded.zeros - LEAST_ZERO).T),
        "scales": rounded.scales.T.contiguous(),
        "g_idx": torch.arange(inputs, dtype=torch.int32) // (inputs // groups),
    }


def awq_tensors(rounded: RoundedLinear) -> dict[str, torch.Tensor]:
    """Return a layer's tensors as AutoAWQ's version gemm packs them."""
    return {
        "qweight": _pack_awq(rounded.numbers.T),
        "qzeros": _pack_awq(rounded.zeros.T),
        "scales": rounded.scales.T.contiguous(),
    }


def compressed_tensors(rounded: RoundedLinear) -> dict[str, torch.Tensor]:
    """Return a layer's tensors as compressed-tensors writes them, in its format pack-quantized."""
    return {
        "weight_packed": pack_numbers(rounded.numbers),
        "weight_scale": rounded.scales,
        "weight_zero_point": pack_numbers(rounded.zeros.T).T.contiguous(),
        "weight_shape": torch.tensor(rounded.numbers.shape),
    }


def _pack_awq(numbers: torch.Tensor) -> torch.Tensor:
    by_word = numbers.reshape(len(numbers), -1, PER_WORD)[..., list(AWQ_OUTPUTS)]
    return pack_numbers(by_word.flatten(-2))
