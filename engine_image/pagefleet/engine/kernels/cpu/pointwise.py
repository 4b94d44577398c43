"""Row-wise operations in C over fixed argument blocks; the twins are torch's, in `layers`."""

import ctypes

import torch

from pagefleet.engine.kernels.cpu.library import KernelLibrary, RmsArguments, load_library
from pagefleet.engine.layers.norm import RmsNorm, rms_norm


class CpuRmsNorm:
    """Normalise rows as `layers.norm.rms_norm` does."""

    def __init__(self, library: KernelLibrary, dtype: torch.dtype) -> None:
        self._kernel = library.kernel("rms_norm", dtype)
        self._arguments = RmsArguments()
        self._pointer = ctypes.byref(self._arguments)

    def __call__(self, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Map [tokens, hidden] to the same shape."""
        hidden = hidden.contiguous()
        output = torch.empty_like(hidden)
        arguments = self._arguments
        arguments.input, arguments.weight, arguments.output = hidden.data_ptr(), weight.data_ptr(), output.data_ptr()
        arguments.rows, arguments.width = hidden.shape
        arguments.epsilon = epsilon
        self._kernel(self._pointer)
        return output


def make_rms_norm(dtype: torch.dtype) -> RmsNorm:
    """Return the norm in C, or torch's where there is no library."""
    library = load_library()
    return rms_norm if library is None else CpuRmsNorm(library, dtype)
