"""GPTQ (arXiv 2210.17323): round input after input, and let those that follow make up for the error.

Inputs are rounded in order of their second moment, the largest first, while groups stay neighbours: scales are fixed
before, so a checkpoint needs no order of its own.
"""

import torch

from pagefleet.engine.errors import StartupError
from pagefleet.engine.layers.int4 import LEVELS
from pagefleet.engine.quantize.rounded import RoundedLinear, ranges_of

BLOCK = 128
"""Inputs whose errors are passed on together to all that follow."""

MOST_DAMPING = 1.0


def round_with_moments(weight: torch.Tensor, moments: torch.Tensor, group: int, *, damping: float) -> RoundedLinear:
    """Round a float32 [outputs, inputs] weight by the [inputs, inputs] second moments of its inputs.

    `damping` is the share of the mean moment that is added to all. Raises StartupError when no damping helps.
    """
    diagonal = moments.diagonal()
    is_dead = diagonal == 0
    weight = weight.masked_fill(is_dead, 0)
    order = diagonal.argsort(descending=True, stable=True)
    spread = _spread(moments + torch.diag(is_dead.float()), order, damping)
    scales, zeros = ranges_of(weight, group)
    group_of = order // group
    numbers = torch.empty_like(weight)
    numbers[:, order] = _rounded(weight[:, order], spread, scales[:, group_of], zeros[:, group_of])
    return RoundedLinear(numbers.to(torch.uint8), scales.half(), zeros.to(torch.uint8))


def _spread(moments: torch.Tensor, order: torch.Tensor, damping: float) -> torch.Tensor:
    """Return the upper Cholesky factor of the inverse moments: row i says how the error of input i spreads."""
    ordered = moments[order][:, order]
    mean = ordered.diagonal().mean()
    upper: torch.Tensor
    while damping <= MOST_DAMPING:
        damped = ordered + torch.eye(len(ordered)) * (damping * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not failed and bool(upper.isfinite().all()):
                return upper
        damping *= 10
    raise StartupError("the calibration text moves a layer's inputs too little to round by; give a longer, mixed text")


def _rounded(weight: torch.Tensor, spread: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """Return the numbers of [outputs, inputs] weights, all arguments in the order of rounding."""
    rest, numbers = weight.clone(), torch.empty_like(weight)
    inverse = torch.where(scales > 0, 1 / scales, 0)
    for first in range(0, weight.shape[1], BLOCK):
        last = min(first + BLOCK, weight.shape[1])
        errors = torch.empty(len(weight), last - first)
        for column in range(first, last):
            values = rest[:, column]
            chosen = ((values * inverse[:, column]).round() + zeros[:, column]).clamp(0, LEVELS)
            numbers[:, column] = chosen
            error = (values - (chosen - zeros[:, column]) * scales[:, column]) / spread[column, column]
            rest[:, column:last].addr_(error, spread[column, column:last], alpha=-1)
            errors[:, column - first] = error
        rest[:, last:] -= errors @ spread[first:last, last:]
    return numbers
