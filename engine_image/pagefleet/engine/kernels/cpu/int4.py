"""Give linears with 4-bit weights to the back end that is right here, rounding them first where they are not yet."""

import logging
from collections.abc import Iterable

from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.cpu.int4_linear import CpuInt4Linear
from pagefleet.engine.kernels.cpu.library import load_library
from pagefleet.engine.layers.int4_linear import TorchInt4Linear
from pagefleet.engine.layers.int4_rounding import GROUPS, group_size, round_groups
from pagefleet.engine.layers.linear import Linear, LinearKernel

logger = logging.getLogger(__name__)

INT4_BACKENDS = ("c", "torch")


def round_to_int4(linears: Iterable[Linear]) -> list[Linear]:
    """Round the weights of linears to 4 bits and return those that were left as they are, for want of a group size.

    Each weight is let go of before the next is rounded. Raises StartupError when nothing can be rounded.
    """
    pending = list(linears)
    weights = [each.weight for each in pending if each.weight is not None]
    if not weights:
        raise StartupError("--quantization int4: this model keeps its own linears; use --quantization none")
    if any(weight.device.type != "cpu" for weight in weights):
        raise StartupError("--quantization int4 computes on the CPU; use --quantization none, or --device cpu")
    left = []
    for each in pending:
        if each.weight is None:
            continue
        group = group_size(each.weight.shape[1])
        if group is None:
            left.append(each)
            continue
        each.use(TorchInt4Linear(round_groups(each.weight, group), each.bias, each.weight.dtype))
    if left:
        odd = sorted({each.weight.shape[1] for each in left if each.weight is not None})
        logger.warning(
            "%d linears keep their precision: their %s inputs are no multiple of %d",
            *(len(left), ", ".join(map(str, odd)), GROUPS[-1]),
        )
    if len(left) == len(weights):
        raise StartupError(
            f"--quantization int4: no linear has inputs in multiples of {GROUPS[-1]}; use --quantization int8"
        )
    return left


def use_int4_backend(name: str, linears: Iterable[Linear]) -> str:
    """Give linears that hold 4-bit weights to one back end and return its name; raises StartupError.

    `auto` is C where its kernels can be loaded, else torch.
    """
    pending = [(each, each.kernel) for each in linears if isinstance(each.kernel, TorchInt4Linear)]
    is_on_cpu = all(kernel.weight.words.device.type == "cpu" for _, kernel in pending)
    has_c = is_on_cpu and load_library() is not None
    if name not in ("auto", *INT4_BACKENDS):
        raise StartupError(f"--linear-backend {name} has no 4-bit weights; use auto, {' or '.join(INT4_BACKENDS)}")
    if name == "c" and not has_c:
        raise StartupError("--linear-backend c: the kernels cannot be loaded; use --linear-backend auto")
    if name == "torch" or not has_c:
        return "torch"
    for each, kernel in pending:
        each.use(make_int4_kernel(kernel, is_gated=each.is_gated))
    return "c"


def make_int4_kernel(plain: TorchInt4Linear, *, is_gated: bool) -> LinearKernel:
    """Pack a 4-bit linear for C; one that C cannot multiply, or no C here, is returned as it is."""
    library = load_library()
    if library is None:
        return plain
    if reason := CpuInt4Linear.unsupported(plain.weight):
        logger.info("a 4-bit linear not in C: %s", reason)
        return plain
    return CpuInt4Linear(library, plain.weight, plain.bias, plain.dtype, is_gated=is_gated)
