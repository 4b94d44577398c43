"""Choose the attention back end: what the flag says, else the fastest that can serve the model on this machine."""

import logging

import torch

from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.cpu.attention import CpuAttention
from pagefleet.engine.kernels.gather import GatherAttention
from pagefleet.engine.kernels.interface import AttentionShape, PagedAttention

logger = logging.getLogger(__name__)

ATTENTION_BACKENDS: dict[str, type[PagedAttention]] = {"c": CpuAttention, "gather": GatherAttention}
"""By the flag's value, the fastest first."""


def choose_attention(name: str, shape: AttentionShape, compute_dtype: torch.dtype) -> type[PagedAttention]:
    """Return the back end; raises StartupError when the one that `name` demands cannot serve the shape."""
    if name != "auto":
        if name not in ATTENTION_BACKENDS:
            raise StartupError(f"--attention-backend {name} is unknown; use auto, {' or '.join(ATTENTION_BACKENDS)}")
        if reason := _unsupported(ATTENTION_BACKENDS[name], shape, compute_dtype):
            raise StartupError(f"--attention-backend {name}: {reason}; use --attention-backend auto")
        return ATTENTION_BACKENDS[name]
    for back_end in ATTENTION_BACKENDS.values():
        reason = _unsupported(back_end, shape, compute_dtype)
        if reason is None:
            return back_end
        if shape.device.type == "cpu":
            logger.warning("slower attention in torch: %s", reason)
    raise AssertionError("the last back end serves everything")


def _unsupported(back_end: type[PagedAttention], shape: AttentionShape, compute_dtype: torch.dtype) -> str | None:
    if back_end is CpuAttention and shape.cache_dtype != compute_dtype:
        return f"the C attention kernel does not convert between a {shape.cache_dtype} cache and {compute_dtype} rows"
    return back_end.unsupported(shape)
