"""Round weights to 4 bits, group by group, to the nearest numbers: what a loader can do without calibration."""

import torch

from pagefleet.engine.layers.int4 import LEVELS, PANEL_VALUES, Int4Weight, pack_numbers

GROUPS = (128, 64, 32)
"""Inputs that share a scale and a zero point: the first that divides a layer's inputs."""

SHRINKS = tuple(1 - step / 20 for step in range(8))
"""Shares of a group's range that are tried: numbers beyond are cut, and the others get finer steps."""


def group_size(inputs: int) -> int | None:
    """Return the inputs of one group; None when no size divides them."""
    return next((size for size in GROUPS if inputs % size == 0), None)


def round_groups(weight: torch.Tensor, group: int) -> Int4Weight:
    """Round an [outputs, inputs] weight; a group with a number that is not finite gets a scale that is not."""
    panel = max(1, PANEL_VALUES // weight.shape[1])
    parts = [
        _round_groups(weight[first : first + panel].float().reshape(-1, weight.shape[1] // group, group))
        for first in range(0, len(weight), panel)
    ]
    return Int4Weight(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def _round_groups(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Round [outputs, groups, group] values to words, scales and zeros."""
    scales, zeros = best_ranges(values)
    numbers = nearest_numbers(values, scales, zeros)
    return pack_numbers(numbers.flatten(-2)), scales, zeros.nan_to_num(0).to(torch.uint8)


def best_ranges(
    values: torch.Tensor, *, scale_dtype: torch.dtype = torch.float32, least_zero: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float32 scales and whole zeros, [...], of [..., group] values: those, of the ranges tried, with the least
    square error. Scales are numbers of `scale_dtype`.
    """
    best = torch.full(values.shape[:-1], torch.inf, device=values.device)
    scales, zeros = torch.zeros_like(best), torch.zeros_like(best)
    for shrink in SHRINKS:
        candidate_scales, candidate_zeros = range_of(values, shrink)
        candidates = candidate_scales.to(scale_dtype).float(), candidate_zeros.clamp(min=least_zero)
        errors = (represented(values, *candidates) - values).square().sum(-1)
        is_better = (errors < best) | ~errors.isfinite()
        best, scales, zeros = (
            torch.where(is_better, new, old)
            for new, old in zip((errors, *candidates), (best, scales, zeros), strict=True)
        )
    return scales, zeros


def range_of(values: torch.Tensor, shrink: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales and whole zeros, [...], that spread 16 numbers over a share of the range of [..., group] values.

    The range holds 0. One that is 0 gets the scale 0.
    """
    least, most = values.amin(-1).clamp(max=0) * shrink, values.amax(-1).clamp(min=0) * shrink
    scales = (most - least) / LEVELS
    zeros = torch.where(scales > 0, (-least / scales).round(), 0).nan_to_num(0)
    return scales, zeros.clamp(0, LEVELS)


def nearest_numbers(values: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """Return the numbers, 0 to 15, in floats, that stand for values in [..., group]."""
    steps = torch.where(scales[..., None] > 0, values / scales[..., None], 0)
    return (steps.round() + zeros[..., None]).nan_to_num(0).clamp(0, LEVELS)


def represented(values: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """Return what values in [..., group] become by rounding."""
    return (nearest_numbers(values, scales, zeros) - zeros[..., None]) * scales[..., None]
