"""Linear layers on the CPU: the C product over packed panels, or oneDNN over weights that it packed itself."""

import ctypes
from collections.abc import Callable

import torch
from torch.nn.functional import linear, pad

from pagefleet.engine.kernels.cache import zeroed
from pagefleet.engine.kernels.cpu.library import GemmArguments, GemmMode, KernelLibrary
from pagefleet.engine.layers.linear import gate_and_multiply


def pack(weight: torch.Tensor, panel: int) -> torch.Tensor:
    """Return [outputs, inputs] as [outputs / panel][inputs / p][panel][p], zeros for outputs that are missing.

    p is the number of elements in 32 bits. The copy lies in huge pages: a step reads all of it, page after page.
    """
    pairs = 4 // weight.dtype.itemsize
    padded = pad(weight, (0, 0, 0, -weight.shape[0] % panel))
    ordered = padded.view(-1, panel, weight.shape[1] // pairs, pairs).transpose(1, 2)
    return zeroed(tuple(ordered.shape), weight.dtype, weight.device).copy_(ordered)


def interleave(gate_up: torch.Tensor, panel: int) -> torch.Tensor:
    """Return gate rows and up rows, one after the other, as panels that are half gate and half up."""
    half = panel // 2
    gate, up = (pad(part, (0, 0) * (part.dim() - 1) + (0, -part.shape[0] % half)) for part in gate_up.chunk(2))
    rest = gate.shape[1:]
    return torch.stack((gate.view(-1, half, *rest), up.view(-1, half, *rest)), dim=1).view(-1, *rest)


class CpuLinear:
    """Multiply in C. Batch-invariant: a row's result does not depend on the other rows."""

    def __init__(
        self, library: KernelLibrary, weight: torch.Tensor, bias: torch.Tensor | None, *, is_gated: bool
    ) -> None:
        self._outputs = weight.shape[0]
        panel = library.panel_columns
        if is_gated:
            weight = interleave(weight, panel)
            bias = None if bias is None else interleave(bias, panel)
        self._weight = pack(weight, panel)
        self._bias = None if bias is None else pad(bias.float(), (0, -len(bias) % panel)).contiguous()
        self._multiply = library.kernel("multiply", weight.dtype)
        self._arguments = GemmArguments(
            weight=self._weight.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            words=self._weight.shape[1],
            columns=self._outputs,
        )
        self._pointer = ctypes.byref(self._arguments)

    @staticmethod
    def unsupported(weight: torch.Tensor) -> str | None:
        """Return why the kernel cannot multiply with this weight, or None."""
        if weight.device.type != "cpu":
            return f"the C product computes on the CPU, not on {weight.device}"
        if weight.dtype not in (torch.float32, torch.bfloat16):
            return f"the C product has no {weight.dtype}"
        if weight.shape[1] * weight.dtype.itemsize % 4:
            return f"the C product takes bfloat16 in pairs, and {weight.shape[1]} inputs are odd"
        return None

    @property
    def nbytes(self) -> int:
        """Return the bytes of the packed weight and bias."""
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Map [tokens, inputs] to [tokens, outputs]."""
        return self._run(rows, torch.empty(len(rows), self._outputs, dtype=rows.dtype), GemmMode.STORE)

    def wide(self, rows: torch.Tensor) -> torch.Tensor:
        """Map to float32, not rounded to the compute dtype in between."""
        return self._run(rows, torch.empty(len(rows), self._outputs), GemmMode.FLOAT32)

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Add the product to `residual` in place."""
        return self._run(rows, residual, GemmMode.ADD)

    def swiglu(self, rows: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up."""
        return self._run(rows, torch.empty(len(rows), self._outputs // 2, dtype=rows.dtype), GemmMode.SWIGLU)

    def _run(self, rows: torch.Tensor, output: torch.Tensor, mode: GemmMode) -> torch.Tensor:
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        arguments = self._arguments
        arguments.input, arguments.input_stride = rows.data_ptr(), rows.stride(0)
        arguments.output, arguments.output_stride = output.data_ptr(), output.stride(0)
        arguments.residual = arguments.output
        arguments.rows, arguments.mode = len(rows), mode
        self._multiply(self._pointer)
        return output


class OneDnnLinear:
    """Multiply with oneDNN over a weight in its own layout. The operators are private to torch: probe before use."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        operators = torch.ops.mkldnn
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self._bias = bias
        self._weight = operators._reorder_linear_weight(weight.contiguous(), None)
        self._linear: Callable[..., torch.Tensor] = operators._linear_pointwise

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Map [tokens, inputs] to [tokens, outputs]."""
        return self._linear(rows, self._weight, self._bias, "none", [], "")

    def wide(self, rows: torch.Tensor) -> torch.Tensor:
        """Map to float32."""
        return self(rows).float()

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return residual plus the product."""
        return residual + self(rows)

    def swiglu(self, rows: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up."""
        return gate_and_multiply(self(rows))


def exact_product(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the product in float32, by which the back ends are judged."""
    return linear(rows.float(), weight.float())
