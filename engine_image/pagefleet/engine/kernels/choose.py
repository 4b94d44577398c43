"""Choose the attention back end: what the flag says, else the fastest that can serve the model on this machine."""

import logging

import torch

from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.cpu.attention import CpuAttention
from pagefleet.engine.kernels.gather import GatherAttention
from pagefleet.engine.kernels.interface import AttentionShape, PagedAttention
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

PACKED_BACKENDS: dict[str, type[PagedAttention]] = {"triton": PackedTritonAttention, "gather": PackedGatherAttention}
"""Those of a packed cache."""

FASTEST: dict[str, type[PagedAttention]] = {"cpu": CpuAttention, "cuda": TritonAttention}
"""By the type of device: what is taken where it can serve the model."""


def choose_attention(name: str, shape: AttentionShape, compute_dtype: torch.dtype) -> type[PagedAttention]:
    """Return the back end; raises StartupError when the one that `name` demands cannot serve the shape."""
    if name != "auto":
        if name not in ATTENTION_BACKENDS:
            *others, last = ATTENTION_BACKENDS
            raise StartupError(f"--attention-backend {name} is unknown; use auto, {', '.join(others)} or {last}")
        if reason := _unsupported(ATTENTION_BACKENDS[name], shape, compute_dtype):
            raise StartupError(f"--attention-backend {name}: {reason}; use --attention-backend auto")
        return ATTENTION_BACKENDS[name]
    fastest = FASTEST.get(shape.device.type, GatherAttention)
    reason = _unsupported(fastest, shape, compute_dtype)
    if reason is None:
        return fastest
    logger.warning("slower attention in torch: %s", reason)
    return GatherAttention


def _unsupported(back_end: type[PagedAttention], shape: AttentionShape, compute_dtype: torch.dtype) -> str | None:
    if back_end is CpuAttention and shape.cache_dtype != compute_dtype:
        return f"the C attention kernel does not convert between a {shape.cache_dtype} cache and {compute_dtype} rows"
    return back_end.unsupported(shape)
