"""Give linears with 8-bit weights to the back end that is right here, rounding them first where they are not yet."""

from collections.abc import Iterable

import torch

from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.cpu.library import load_library
from pagefleet.engine.kernels.cpu.linear import CpuInt8Linear
from pagefleet.engine.layers.linear import Linear, LinearKernel
from pagefleet.engine.layers.quantized import TorchInt8Linear, quantize_rows

INT8_BACKENDS = ("c", "torch")
"""oneDNN sums over all inputs at once, and here each group of them has a scale."""


def use_int8(name: str, linears: Iterable[Linear]) -> str:
    """Give linears to one back end, rounding those that are plain, and return its name; raises StartupError.

    `auto` is C where its kernels can be loaded, else torch. Each weight is let go of before the next is rounded, so
    memory never holds all of both.
    """
    pending = list(linears)
    if not pending or any(each.weight is None and not isinstance(each.kernel, TorchInt8Linear) for each in pending):
        raise StartupError("--quantization int8: this model keeps its own linears; use --quantization none")
    if any(_device(each).type != "cpu" for each in pending):
        raise StartupError("8-bit weights compute on the CPU; use plain or 4-bit ones, or --device cpu")
    if name not in ("auto", *INT8_BACKENDS):
        raise StartupError(f"--linear-backend {name} has no 8-bit weights; use auto, {' or '.join(INT8_BACKENDS)}")
    has_c = load_library() is not None
    if name == "c" and not has_c:
        raise StartupError("--linear-backend c: the kernels cannot be loaded; use --linear-backend auto")
    name = "c" if name == "auto" and has_c else "torch" if name == "auto" else name
    for each in pending:
        each.use(make_int8_kernel(name, each))
    return name


def make_int8_kernel(name: str, linear: Linear) -> LinearKernel:
    """Round a linear, unless it holds 8-bit weights, for the back end `c` or `torch`."""
    kernel = linear.kernel if isinstance(linear.kernel, TorchInt8Linear) else _rounded(linear)
    library = load_library()
    if name == "torch" or library is None:
        return kernel
    return CpuInt8Linear(library, kernel, is_gated=linear.is_gated)


def _device(linear: Linear) -> torch.device:
    kernel = linear.kernel
    weight = kernel.weight.integers if isinstance(kernel, TorchInt8Linear) else linear.weight
    if weight is None:
        raise ValueError("the linear is another kernel's")
    return weight.device


def _rounded(plain: Linear) -> TorchInt8Linear:
    """Round a linear's weight."""
    if plain.weight is None:
        raise ValueError("the linear is packed already")
    return TorchInt8Linear(quantize_rows(plain.weight), plain.bias, plain.weight.dtype)
