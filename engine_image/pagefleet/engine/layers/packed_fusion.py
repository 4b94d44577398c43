"""Stack linears over the same input whose weights may be packed already, as checkpoints bring them."""

import logging

import torch

from pagefleet.engine.layers.int4 import Int4Weight, dequantize
from pagefleet.engine.layers.int4_linear import TorchInt4Linear
from pagefleet.engine.layers.linear import Linear, fuse
from pagefleet.engine.layers.quantized import QuantizedWeight, TorchInt8Linear

logger = logging.getLogger(__name__)


def fuse_linears(parts: list[Linear], *, is_gated: bool = False) -> Linear:
    """Stack linears as `fuse` does; they stay packed where all are alike, with their inputs in one order."""
    kernels = [part.kernel for part in parts if isinstance(part.kernel, TorchInt4Linear | TorchInt8Linear)]
    if not kernels:
        return fuse(parts, is_gated=is_gated)
    stacked = _stacked(kernels) if len(kernels) == len(parts) else None
    if stacked is None:
        logger.warning(
            "layers that read the same input are packed differently and become %s: %d of %d are packed",
            *(kernels[0].dtype, len(kernels), len(parts)),
        )
        return fuse([_plain(part) for part in parts], is_gated=is_gated)
    return Linear(None, is_gated=is_gated, kernel=stacked)


def _stacked(kernels: list[TorchInt4Linear | TorchInt8Linear]) -> TorchInt4Linear | TorchInt8Linear | None:
    """Return one kernel for all; None where they cannot be one."""
    biases = [kernel.bias for kernel in kernels if kernel.bias is not None]
    bias, dtype = torch.cat(biases) if biases else None, kernels[0].dtype
    eight = [kernel.weight for kernel in kernels if isinstance(kernel, TorchInt8Linear)]
    if len(eight) == len(kernels):
        integers = torch.cat([weight.integers for weight in eight])
        return TorchInt8Linear(QuantizedWeight(integers, torch.cat([weight.scales for weight in eight])), bias, dtype)
    four = [kernel.weight for kernel in kernels if isinstance(kernel, TorchInt4Linear)]
    if len(four) < len(kernels) or not all(_fit_together(four[0], weight) for weight in four):
        return None
    weight = Int4Weight(
        torch.cat([weight.words for weight in four]),
        torch.cat([weight.scales for weight in four]),
        torch.cat([weight.zeros for weight in four]),
        four[0].order,
    )
    return TorchInt4Linear(weight, bias, dtype)


def _fit_together(one: Int4Weight, other: Int4Weight) -> bool:
    if one.scales.shape[1] != other.scales.shape[1] or (one.order is None) != (other.order is None):
        return False
    return one.order is None or other.order is None or torch.equal(one.order, other.order)


def _plain(part: Linear) -> Linear:
    kernel = part.kernel
    if isinstance(kernel, TorchInt8Linear):
        return Linear(kernel.weight.values().to(kernel.dtype), kernel.bias)
    if isinstance(kernel, TorchInt4Linear):
        return Linear(dequantize(kernel.weight).to(kernel.dtype), kernel.bias)
    return part
