"""Give linears with 4-bit weights to the fastest back end of the device, rounding them first where they are not."""

import logging
from collections.abc import Iterable

import torch

from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.cpu.int4_linear import CpuInt4Linear
from pagefleet.engine.kernels.cpu.library import load_library
from pagefleet.engine.kernels.triton.device import device_refusal
from pagefleet.engine.kernels.triton.int4_weight import GROUPS as GPU_GROUPS
from pagefleet.engine.kernels.triton.int4_weight import gpu_group
from pagefleet.engine.layers.int4_linear import TorchInt4Linear
from pagefleet.engine.layers.int4_rounding import GROUPS, group_size, round_groups
from pagefleet.engine.layers.linear import Linear, LinearKernel

logger = logging.getLogger(__name__)

INT4_BACKENDS = ("c", "triton", "torch")

FASTEST = {"cpu": "c", "cuda": "triton"}
"""By the type of device."""


def round_linear(linear: Linear) -> None:
    """Round a linear's weight to 4 bits and let go of it; one without a group size, or a weight, stays as it is."""
    if linear.weight is None:
        return
    group = group_size(linear.weight.shape[1])
    if group is not None:
        linear.use(TorchInt4Linear(round_groups(linear.weight, group), linear.bias, linear.weight.dtype))


def round_to_int4(linears: Iterable[Linear]) -> list[Linear]:
    """Round the weights that are not yet, and return the linears that stay plain for want of a group size.

    Raises StartupError when nothing can be rounded.
    """
    pending = list(linears)
    for each in pending:
        round_linear(each)
    plain = [each for each in pending if each.weight is not None]
    if any(isinstance(each.kernel, TorchInt4Linear) for each in pending):
        if plain:
            odd = sorted({each.weight.shape[1] for each in plain if each.weight is not None})
            logger.warning(
                "%d linears keep their precision: their %s inputs are no multiple of %d",
                *(len(plain), ", ".join(map(str, odd)), GROUPS[-1]),
            )
        return plain
    if plain:
        raise StartupError(
            f"--quantization int4: no linear has inputs in multiples of {GROUPS[-1]}; use --quantization int8"
        )
    raise StartupError("--quantization int4: this model keeps its own linears; use --quantization none")


def use_int4_backend(name: str, linears: Iterable[Linear]) -> str:
    """Give linears that hold 4-bit weights to one back end and return its name; raises StartupError.

    `auto` is the fastest of the device, or torch where that cannot be had. What the back end does not take stays in
    torch.
    """
    if name not in ("auto", *INT4_BACKENDS):
        *others, last = ("auto", *INT4_BACKENDS)
        raise StartupError(f"--linear-backend {name} has no 4-bit weights; use {', '.join(others)} or {last}")
    pending = [(each, each.kernel) for each in linears if isinstance(each.kernel, TorchInt4Linear)]
    device = next((kernel.weight.words.device for _, kernel in pending), torch.device("cpu"))
    chosen = FASTEST.get(device.type, "torch") if name == "auto" else name
    refusal = {"c": _c_refusal, "triton": _triton_refusal}.get(chosen, lambda _: None)(device)
    if refusal is not None:
        if name != "auto":
            raise StartupError(f"--linear-backend {name}: {refusal}; use --linear-backend auto")
        logger.warning("4-bit weights are multiplied in torch, slowly: %s", refusal)
        return "torch"
    if chosen == "c":
        for each, kernel in pending:
            each.use(make_int4_kernel(kernel, is_gated=each.is_gated))
    elif chosen == "triton":
        for each, kernel in pending:
            each.use(make_triton_kernel(kernel))
    return chosen


def _c_refusal(device: torch.device) -> str | None:
    if device.type != "cpu":
        return f"the C product computes on the CPU, not on {device}"
    return "the kernels cannot be loaded" if load_library() is None else None


def _triton_refusal(device: torch.device) -> str | None:
    return device_refusal(device, kernel="4-bit")


def make_triton_kernel(plain: TorchInt4Linear) -> LinearKernel:
    """Pack a 4-bit linear for Triton, which must be usable; one whose groups do not fit is returned as it is."""
    # Not at the module's head: images for the CPU have no Triton.
    from pagefleet.engine.kernels.triton.int4_linear import TritonInt4Linear

    if gpu_group(plain.weight) is None:
        own = plain.weight.inputs // plain.weight.scales.shape[1]
        logger.warning("a 4-bit linear not in Triton: groups of %d inputs are no multiples of %d", own, GPU_GROUPS[-1])
        return plain
    return TritonInt4Linear(plain)


def make_int4_kernel(plain: TorchInt4Linear, *, is_gated: bool) -> LinearKernel:
    """Pack a 4-bit linear for C; one that C cannot multiply, or no C here, is returned as it is."""
    library = load_library()
    if library is None:
        return plain
    if reason := CpuInt4Linear.unsupported(plain.weight):
        logger.info("a 4-bit linear not in C: %s", reason)
        return plain
    return CpuInt4Linear(library, plain.weight, plain.bias, plain.dtype, is_gated=is_gated)
