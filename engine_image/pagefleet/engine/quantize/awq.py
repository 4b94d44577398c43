"""AWQ (arXiv 2306.00978): make weights of strong inputs larger before rounding, and those inputs smaller.

For each group of linears with one input, scales are mean magnitudes to a power: the one whose rounding changes the
outputs least. The inverse goes into the norm or linear before, so that the model computes the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from pagefleet.engine.layers.int4_rounding import range_of, represented
from pagefleet.engine.quantize.moments import InputMoments

POWERS = tuple(step / 20 for step in range(20))

LEAST_MAGNITUDE = 1e-4

SMOOTHED = (
    ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    ("input_layernorm", ("self_attn.qkv_proj",)),
    ("self_attn.v_proj", ("self_attn.o_proj",)),
    ("pre_feedforward_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
    ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
    ("post_attention_layernorm", ("mlp.gate_up_proj",)),
    ("mlp.up_proj", ("mlp.down_proj",)),
)
"""What comes before linears and takes their inputs' scales, by names; of two for the same linears the first counts."""


@dataclass(frozen=True)
class Pair:
    """A module and the linears that read its outputs."""

    before: nn.Module
    linears: tuple[str, ...]


def pairs_of(modules: Mapping[str, nn.Module]) -> list[Pair]:
    """Return what can be scaled in a layer; a linear before must have an output for each input behind."""
    pairs: list[Pair] = []
    seen: set[str] = set()
    for before, after in SMOOTHED:
        module = modules.get(before)
        linears = tuple(name for name in after if isinstance(modules.get(name), nn.Linear))
        if module is None or len(linears) < len(after) or linears[0] in seen:
            continue
        behind = modules[linears[0]]
        if isinstance(module, nn.Linear) and module.out_features != getattr(behind, "in_features", None):
            continue
        seen.update(linears)
        pairs.append(Pair(module, linears))
    return pairs


def smooth(modules: Mapping[str, nn.Module], moments: Mapping[str, InputMoments], group: int) -> None:
    """Scale a layer's linears in place, and what comes before them."""
    for pair in pairs_of(modules):
        linears = [modules[name] for name in pair.linears]
        weights = [linear.weight.data for linear in linears if isinstance(linear, nn.Linear)]
        scales = best_scales(weights, moments[pair.linears[0]], group)
        for weight in weights:
            weight *= scales
        _divide(pair.before, scales)


def best_scales(weights: Sequence[torch.Tensor], moments: InputMoments, group: int) -> torch.Tensor:
    """Return the [inputs] scales of linears with one input that leave the least error in their outputs."""
    weight = torch.cat(list(weights))
    magnitudes = moments.magnitudes.clamp(min=LEAST_MAGNITUDE)
    best, found = torch.inf, torch.ones_like(magnitudes)
    for power in POWERS:
        scales = magnitudes**power
        scales = scales / (scales.max() * scales.min()).sqrt()
        values = (weight * scales).view(len(weight), -1, group)
        change = represented(values, *range_of(values)).flatten(-2) / scales - weight
        error = float(((change @ moments.products) * change).sum())
        if error < best:
            best, found = error, scales
    return found


def _divide(module: nn.Module, scales: torch.Tensor) -> None:
    """Make a module's outputs smaller."""
    weight = module.get_parameter("weight").data
    if isinstance(module, nn.Linear):
        weight /= scales[:, None]
        if module.bias is not None:
            module.bias.data /= scales
    elif type(module).__name__.startswith("Gemma"):  # these norms multiply with 1 + weight
        weight.copy_((1 + weight) / scales - 1)
    else:
        weight /= scales
