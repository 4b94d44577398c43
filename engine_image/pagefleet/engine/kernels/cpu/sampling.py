"""Greedy choice in C: one pass over the logits, where torch's maximum with indices is several times slower."""

import ctypes

import torch

from pagefleet.engine.kernels.cpu.library import SamplingArguments, load_library


def argmax(logits: torch.Tensor) -> list[int | None]:
    """Return the first index of each row's largest logit; None for a row whose best logit is not finite."""
    library = load_library() if logits.device.type == "cpu" and logits.dtype == torch.float32 else None
    if library is None or logits.stride(1) != 1 or logits.stride(0) != logits.shape[1]:
        return argmax_in_torch(logits)
    tokens = torch.empty(len(logits), dtype=torch.int64)
    arguments = SamplingArguments(
        logits=logits.data_ptr(), tokens=tokens.data_ptr(), rows=logits.shape[0], width=logits.shape[1]
    )
    library.kernel("argmax", torch.float32)(ctypes.byref(arguments))
    return [None if token < 0 else token for token in tokens.tolist()]


def argmax_in_torch(logits: torch.Tensor) -> list[int | None]:
    """Do the same in torch, on any device."""
    best = logits.max(dim=-1)
    finite = best.values.isfinite().tolist()
    return [token if is_finite else None for token, is_finite in zip(best.indices.tolist(), finite, strict=True)]
