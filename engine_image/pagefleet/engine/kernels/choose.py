"""Choose the attention back end: what the flag says, else the fastest that can serve the model on this machine."""

import logging

import torch

from pagefleet.engine.device import DTYPES
from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.cpu.attention import CpuAttention
from pagefleet.engine.kernels.cpu.packed_attention import PackedCpuAttention
from pagefleet.engine.kernels.gather import GatherAttention
from pagefleet.engine.kernels.interface import AttentionShape, PagedAttention
from pagefleet.engine.kernels.packed_format import PACKED_FORMATS
from pagefleet.engine.kernels.packed_gather import PackedGatherAttention
from pagefleet.engine.kernels.triton.attention import TritonAttention
from pagefleet.engine.kernels.triton.packed_attention import PackedTritonAttention

logger = logging.getLogger(__name__)

ATTENTION_BACKENDS: dict[str, type[PagedAttention]] = {
    "c": CpuAttention,
    "triton": TritonAttention,
    "gather": GatherAttention,
}
"""By the flag's value."""

PACKED_BACKENDS: dict[str, type[PagedAttention]] = {
    "c": PackedCpuAttention,
    "triton": PackedTritonAttention,
    "gather": PackedGatherAttention,
}
"""Those of a packed cache."""

FASTEST = {"cpu": "c", "cuda": "triton"}
"""By the type of device: what is taken where it can serve the model."""


CACHE_DTYPES = {**DTYPES, "fp8": torch.float8_e4m3fn}
"""Of caches that are not packed, by the flag's value; fp8 on GPUs that convert it."""


def check_cache_dtype(name: str) -> None:
    """Refuse a cache type that is unknown; raises StartupError."""
    if name not in ("auto", *CACHE_DTYPES, *PACKED_FORMATS):
        *others, last = (*CACHE_DTYPES, *PACKED_FORMATS)
        raise StartupError(f"--kv-cache-dtype {name} is not supported; use auto, {', '.join(others)} or {last}")


def choose_attention(name: str, shape: AttentionShape, compute_dtype: torch.dtype) -> type[PagedAttention]:
    """Return the back end; raises StartupError when the one that `name` demands cannot serve the shape.

    Where nothing is demanded, that is torch's when the fastest of the device cannot.
    """
    if name not in ("auto", *ATTENTION_BACKENDS):
        *others, last = ATTENTION_BACKENDS
        raise StartupError(f"--attention-backend {name} is unknown; use auto, {', '.join(others)} or {last}")
    wanted = FASTEST.get(shape.device.type, "gather") if name == "auto" else name
    reason = _unsupported(wanted, shape, compute_dtype)
    if reason is None:
        return _backends(shape)[wanted]
    if name != "auto":
        raise StartupError(f"--attention-backend {name}: {reason}; use --attention-backend auto")
    if (why := _unsupported("gather", shape, compute_dtype)) is not None:
        raise StartupError(f"no attention back end can serve this model: {why}")
    logger.warning("slower attention in torch: %s", reason)
    return _backends(shape)["gather"]


def _backends(shape: AttentionShape) -> dict[str, type[PagedAttention]]:
    return ATTENTION_BACKENDS if shape.packed is None else PACKED_BACKENDS


def _unsupported(name: str, shape: AttentionShape, compute_dtype: torch.dtype) -> str | None:
    """Return the sentence that says why the back end cannot serve the shape, or None."""
    if name == "c" and shape.cache_dtype != compute_dtype:
        return f"the C attention kernel does not convert between a {shape.cache_dtype} cache and {compute_dtype} rows"
    return _backends(shape)[name].unsupported(shape)
