"""Choose tokens in C, the largest logit or a draw by the pivot method; the twins in torch are here and in `sampler`."""

import ctypes
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import torch

from pagefleet.engine.kernels.cpu.library import KernelLibrary, SamplingArguments, load_library


@dataclass(frozen=True)
class DrawParameters:
    """Hold one row's sampling parameters."""

    temperature: float
    top_p: float
    min_p: float
    top_k: int
    seed: int
    position: int
    """Tokens drawn before: with the seed it names the random number."""


def argmax(logits: torch.Tensor) -> list[int | None]:
    """Return the first index of each row's largest logit; None for a row whose best logit is not finite."""
    library = _library_for(logits)
    if library is None:
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


def can_draw(logits: torch.Tensor) -> bool:
    """Tell whether `draw` takes these logits."""
    return _library_for(logits) is not None


def draw(logits: torch.Tensor, parameters: SequenceOf[DrawParameters]) -> list[int]:
    """Draw a token for each row of [rows, vocabulary] logits, which are overwritten; ask `can_draw` first.

    The same tokens as `sampler`'s draw in torch, but where two sums differ in their last bit.
    """
    library = _library_for(logits)
    if library is None:
        raise ValueError("the kernel draws from contiguous float32 logits on the CPU")
    tokens = np.empty(len(parameters), dtype=np.int64)
    columns: dict[str, np.ndarray] = {
        "temperatures": np.array([each.temperature for each in parameters], dtype=np.float32),
        "min_ps": np.array([each.min_p for each in parameters], dtype=np.float32),
        "top_ps": np.array([each.top_p for each in parameters], dtype=np.float64),
        "top_ks": np.array([each.top_k for each in parameters], dtype=np.int64),
        "seeds": np.array([each.seed % 2**64 for each in parameters], dtype=np.uint64),
        "positions": np.array([each.position for each in parameters], dtype=np.int64),
    }
    arguments = SamplingArguments(
        logits=logits.data_ptr(),
        tokens=tokens.ctypes.data,
        rows=logits.shape[0],
        width=logits.shape[1],
        **{name: column.ctypes.data for name, column in columns.items()},
    )
    library.kernel("draw", torch.float32)(ctypes.byref(arguments))
    chosen: list[int] = tokens.tolist()
    return chosen


def _library_for(logits: torch.Tensor) -> KernelLibrary | None:
    is_plain = logits.device.type == "cpu" and logits.dtype == torch.float32 and logits.is_contiguous()
    return load_library() if is_plain else None
