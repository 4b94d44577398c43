"""Linear layers on the CPU: the C product over packed panels, or oneDNN over weights that it packed itself."""

import ctypes
from collections.abc import Callable

import torch
from torch.nn.functional import linear, pad

from pagefleet.engine.kernels.cache import zeroed
from pagefleet.engine.kernels.cpu.library import GemmArguments, GemmMode, Kernel, KernelLibrary
from pagefleet.engine.layers.linear import gate_and_multiply
from pagefleet.engine.layers.quantized import INPUT_GROUP, TorchInt8Linear


def pack(weight: torch.Tensor, panel: int) -> torch.Tensor:
    """Pack a weight in words of 32 bits, as `pack_groups` does."""
    return pack_groups(weight, panel, 4 // weight.dtype.itemsize)


def pack_groups(weight: torch.Tensor, panel: int, group: int) -> torch.Tensor:
    """Return [outputs, inputs] as [outputs / panel][inputs / group][panel][group], zeros for what is missing.

    The copy lies in huge pages: a step reads all of it, page after page.
    """
    padded = pad(weight, (0, -weight.shape[1] % group, 0, -weight.shape[0] % panel))
    ordered = padded.view(len(padded) // panel, panel, padded.shape[1] // group, group).transpose(1, 2)
    return zeroed(tuple(ordered.shape), weight.dtype, weight.device).copy_(ordered)


def pad_panels(outputs: torch.Tensor, panel: int) -> torch.Tensor:
    """Return one number for each output, zeros for those that fill the last panel."""
    return pad(outputs, (0, -len(outputs) % panel)).contiguous()


def interleave(gate_up: torch.Tensor, panel: int) -> torch.Tensor:
    """Return gate rows and up rows, one after the other, as panels that are half gate and half up."""
    half = panel // 2
    gate, up = (pad(part, (0, 0) * (part.dim() - 1) + (0, -part.shape[0] % half)) for part in gate_up.chunk(2))
    rest = gate.shape[1:]
    return torch.stack((gate.view(-1, half, *rest), up.view(-1, half, *rest)), dim=1).view(-1, *rest)


class PackedLinear:
    """Call a kernel over packed panels, with one argument block for the linear's life."""

    _weight: torch.Tensor
    _bias: torch.Tensor | None

    def __init__(self, kernel: Kernel, arguments: GemmArguments) -> None:
        self._multiply = kernel
        self._arguments = arguments
        self._pointer = ctypes.byref(arguments)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the packed weight and bias."""
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Map [tokens, inputs] to [tokens, outputs]."""
        return self._run(rows, torch.empty(len(rows), self._arguments.columns, dtype=rows.dtype), GemmMode.STORE)

    def wide(self, rows: torch.Tensor) -> torch.Tensor:
        """Map to float32, not rounded to the compute dtype in between."""
        return self._run(rows, torch.empty(len(rows), self._arguments.columns), GemmMode.FLOAT32)

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Add the product to `residual` in place."""
        return self._run(rows, residual, GemmMode.ADD)

    def swiglu(self, rows: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up."""
        return self._run(rows, torch.empty(len(rows), self._arguments.columns // 2, dtype=rows.dtype), GemmMode.SWIGLU)

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


class CpuLinear(PackedLinear):
    """Multiply in C. Batch-invariant: a row's result does not depend on the other rows."""

    def __init__(
        self, library: KernelLibrary, weight: torch.Tensor, bias: torch.Tensor | None, *, is_gated: bool
    ) -> None:
        outputs, panel = weight.shape[0], library.panel_columns
        if is_gated:
            weight = interleave(weight, panel)
            bias = None if bias is None else interleave(bias, panel)
        self._weight = pack(weight, panel)
        self._bias = None if bias is None else pad_panels(bias.float(), panel)
        super().__init__(
            library.kernel("multiply", weight.dtype),
            GemmArguments(
                weight=self._weight.data_ptr(),
                bias=None if self._bias is None else self._bias.data_ptr(),
                words=self._weight.shape[1],
                columns=outputs,
            ),
        )

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


class CpuInt8Linear(PackedLinear):
    """Multiply 8-bit integers in C, exactly; scaling and what follows are float32. Batch-invariant like `CpuLinear`."""

    def __init__(self, library: KernelLibrary, plain: TorchInt8Linear, *, is_gated: bool) -> None:
        integers, scales, bias = plain.weight.integers, plain.weight.scales, plain.bias
        (outputs, inputs), panel = integers.shape, library.panel_columns
        if is_gated:
            integers, scales = interleave(integers, panel), interleave(scales, panel)
            bias = None if bias is None else interleave(bias, panel)
        self._weight = pack_groups(integers, panel, library.int8_group)
        self._bias = None if bias is None else pad_panels(bias.float(), panel)
        self._scales = pad_panels(scales, panel)
        groups = torch.split(integers, INPUT_GROUP, dim=-1)
        sums = torch.stack([group.sum(-1, dtype=torch.int16) for group in groups], -1)
        self._sums = pack_groups(sums, panel, 1)
        super().__init__(
            library.kernel("multiply_int8", plain.dtype),
            GemmArguments(
                weight=self._weight.data_ptr(),
                bias=None if self._bias is None else self._bias.data_ptr(),
                words=self._weight.shape[1],
                columns=outputs,
                weight_scales=self._scales.data_ptr(),
                weight_sums=self._sums.data_ptr(),
                inputs=inputs,
                groups=len(groups),
            ),
        )

    @property
    def nbytes(self) -> int:
        """Return the bytes of the packed weight, its scales and sums, and the bias."""
        return super().nbytes + self._scales.nbytes + self._sums.nbytes


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
