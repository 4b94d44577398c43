"""Load the compiled kernels of this CPU's level and declare their functions for ctypes."""

import ctypes
import logging
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from pathlib import Path

import torch  # before the kernels: they then share its OpenMP runtime, and `torch.set_num_threads` governs them too

from pagefleet.engine.kernels.cpu import build

logger = logging.getLogger(__name__)

Kernel = Callable[[object], None]
"""Takes `ctypes.byref` of its argument block."""

_LEVEL_CAPABILITIES = {
    "avx512-bf16": ("avx512_bf16", "avx512_vnni", "avx512_f", "avx512_bw", "avx512_vl", "avx512_dq", "avx512_cd"),
    "avx512": ("avx512_f", "avx512_bw", "avx512_vl", "avx512_dq", "avx512_cd"),
    "avx2": ("avx2", "fma3", "f16c", "bmi2"),
}
_LANES = {"avx512-bf16": 16, "avx512": 16, "avx2": 8}
_PANEL_VECTORS = {"avx512-bf16": 4, "avx512": 4, "avx2": 2}
_INT8_GROUPS = {"avx512-bf16": 4, "avx512": 2, "avx2": 2}
_DTYPE_SUFFIXES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class AttentionArguments(ctypes.Structure):
    """Mirror `attention_arguments` of arguments.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "output", "cosine", "sine", "keys", "values")),
        *((name, ctypes.c_void_p) for name in ("slots", "tables", "items")),
        *((name, ctypes.c_int64) for name in ("query_stride", "kv_stride", "table_stride", "items_count", "tokens")),
        *((name, ctypes.c_int64) for name in ("query_heads", "kv_heads", "head_dim", "block_size", "window")),
        *((name, ctypes.c_double) for name in ("scale", "soft_cap")),
    )


class PackedArguments(AttentionArguments):
    """Mirror `packed_arguments` of arguments.h, which begins with an `attention_arguments`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("records", "plain_slots", "filled")),
        *((name, ctypes.c_int64) for name in ("filled_count", "record_bytes", "key_bits", "value_bits", "sink_blocks")),
    )


class GemmMode(IntEnum):
    """Say what happens to a product, as the constants of arguments.h do."""

    STORE = 0
    ADD = 1
    SWIGLU = 2
    FLOAT32 = 3


class GemmArguments(ctypes.Structure):
    """Mirror `gemm_arguments` of arguments.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("input", "weight", "bias", "residual", "output")),
        *((name, ctypes.c_int64) for name in ("rows", "words", "columns", "input_stride", "output_stride", "mode")),
        *((name, ctypes.c_void_p) for name in ("weight_scales", "weight_sums")),
        ("inputs", ctypes.c_int64),
        ("weight_zeros", ctypes.c_void_p),
        ("groups", ctypes.c_int64),
    )


class RmsArguments(ctypes.Structure):
    """Mirror `rms_arguments` of arguments.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("input", "weight", "output")),
        *((name, ctypes.c_int64) for name in ("rows", "width")),
        ("epsilon", ctypes.c_double),
    )


class SamplingArguments(ctypes.Structure):
    """Mirror `sampling_arguments` of arguments.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "tokens", "temperatures", "min_ps", "top_ps", "top_ks")),
        *((name, ctypes.c_void_p) for name in ("seeds", "positions")),
        *((name, ctypes.c_int64) for name in ("rows", "width")),
    )


class KernelLibrary:
    """Hold the functions of one level."""

    def __init__(self, path: Path, level: str) -> None:
        self.level = level
        self.lanes = _LANES[level]
        """32-bit numbers in one register."""
        self.panel_columns = _PANEL_VECTORS[level] * self.lanes
        """Outputs in one panel of a packed weight: COLUMNS of vector.h."""
        self.int8_group = _INT8_GROUPS[level]
        """Inputs in one word of a packed 8-bit weight: GROUP of gemm_int8.h."""
        self._library = ctypes.CDLL(str(path))

    def kernel(self, name: str, dtype: torch.dtype) -> Kernel:
        """Return the function of that name over elements of this dtype."""
        function = self._library[f"{name}_{_DTYPE_SUFFIXES[dtype]}"]
        function.argtypes = [ctypes.c_void_p]
        function.restype = None
        return function


def cpu_level() -> str | None:
    """Return the best level that this CPU has all instructions of; None when it has none."""
    capabilities = torch.cpu.get_capabilities()
    for level, names in _LEVEL_CAPABILITIES.items():
        if all(capabilities.get(name) for name in names):
            return level
    return None


@cache
def load_library() -> KernelLibrary | None:
    """Return the kernels for this CPU, compiled on first use; None, with the reason logged, when there are none."""
    level = cpu_level()
    if level is None:
        logger.warning("no C kernels: this CPU has no AVX2; computing with torch")
        return None
    path = build.prebuilt_library(level)
    try:
        if path is None:
            compiler = build.find_compiler()
            if compiler is None:
                logger.warning("no C kernels: no C compiler is on the path; computing with torch")
                return None
            path = build.build_library(level, compiler)
        return KernelLibrary(path, level)
    except (build.BuildFailed, OSError) as error:
        logger.warning("no C kernels: %s; computing with torch", error)
        return None
