"""Round a model's linears to 8 bits as it is loaded, for the back end that is fastest and right on this CPU."""

import logging
from collections.abc import Iterable

import torch

from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.cpu.library import load_library
from pagefleet.engine.kernels.cpu.linear import CpuInt8Linear
from pagefleet.engine.kernels.cpu.probe import LINEAR_BACKENDS, PROBE_OUTPUTS, Product, choose, measure, probe_inputs
from pagefleet.engine.layers.linear import Linear, LinearKernel, gate_and_multiply
from pagefleet.engine.layers.quantized import TorchInt8Linear, quantize_inputs, quantize_rows

logger = logging.getLogger(__name__)

RELATIVE_ERROR = 1e-3
"""Integer products are exact, so what is wrong is far off: oneDNN saturates on a CPU without VNNI."""


class OneDnnInt8Linear:
    """Multiply with oneDNN's 8-bit product. Its operators are private to torch: probe before use."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        operators = torch.ops.onednn
        quantized = quantize_rows(weight)
        self.nbytes = quantized.nbytes + (0 if bias is None else bias.nbytes)
        self._scales = quantized.scales
        self._weight_zeros = torch.zeros(len(weight), dtype=torch.int64)
        self._sums = quantized.integers.sum(-1) * quantized.scales
        self._weight = operators.qlinear_prepack(quantized.integers, None)
        self._bias = None if bias is None else bias.float()
        self._dtype = weight.dtype
        self._multiply = operators.qlinear_pointwise

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Map [tokens, inputs] to [tokens, outputs]."""
        return self.wide(rows).to(self._dtype)

    def wide(self, rows: torch.Tensor) -> torch.Tensor:
        """Map to float32."""
        integers, scales = quantize_inputs(rows)
        zeros = -integers.amin(-1, keepdim=True).clamp(max=0)
        shifted = (integers + zeros).to(torch.uint8)
        arguments = (shifted, 1.0, 128, self._weight, self._scales, self._weight_zeros)
        sums = self._multiply(*arguments, None, 1.0, 0, torch.float32, "none", [], "")
        # oneDNN takes one zero point for all rows: 128 leaves the least to be taken back here.
        scaled: torch.Tensor = (sums - (zeros - 128) * self._sums) * scales[:, None]
        return scaled if self._bias is None else scaled + self._bias

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return residual plus the product."""
        return residual + self(rows)

    def swiglu(self, rows: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up."""
        return gate_and_multiply(self(rows))


def use_int8(name: str, linears: Iterable[Linear]) -> str:
    """Round all linears for one back end and return its name; raises StartupError when `name` cannot be had.

    `auto` probes. Each weight is let go of before the next is rounded, so memory never holds all of both.
    """
    pending = list(linears)
    weights = [each.weight for each in pending if each.weight is not None]
    if not weights:
        raise StartupError("--quantization int8: this model keeps its own linears; use --quantization none")
    if any(weight.device.type != "cpu" for weight in weights):
        raise StartupError("--quantization int8 computes on the CPU; use --quantization none, or --device cpu")
    if name == "auto":
        largest = max(weights, key=torch.numel)[:PROBE_OUTPUTS]
        name = choose(measure("int8 linear", right_products(largest), probe_inputs(largest)))
    if name == "c" and load_library() is None:
        raise StartupError("--linear-backend c: the kernels cannot be loaded; use --linear-backend auto")
    if name not in LINEAR_BACKENDS:
        raise StartupError(f"--linear-backend {name} is unknown; use auto, {', '.join(LINEAR_BACKENDS)}")
    for each in pending:
        each.use(make_int8_kernel(name, each))
    return name


@torch.inference_mode()
def right_products(weight: torch.Tensor) -> dict[str, Product]:
    """Return the back ends, by name, that multiply integers as they should."""
    standard = TorchInt8Linear(weight, None)
    products: dict[str, Product] = {"torch": standard}
    rows = probe_inputs(weight)[1]
    expected = standard.wide(rows)
    for name in ("c", "onednn") if load_library() is not None else ("onednn",):
        try:
            kernel = make_int8_kernel(name, Linear(weight))
            error = (kernel.wide(rows) - expected).abs().max()
        except (AttributeError, RuntimeError) as error_raised:  # a torch without these private operators
            logger.info("int8 linear back end %s cannot be used: %s", name, error_raised)
            continue
        if error <= RELATIVE_ERROR * expected.abs().max():
            products[name] = kernel
        else:
            logger.info("int8 linear back end %s is wrong on this CPU: off by %.2g", name, error)
    return products


def make_int8_kernel(name: str, plain: Linear) -> LinearKernel:
    """Round a linear for the back end `c`, `onednn` or `torch`."""
    if plain.weight is None:
        raise ValueError("the linear is packed already")
    if name == "onednn":
        return OneDnnInt8Linear(plain.weight, plain.bias)
    library = load_library()
    if name == "torch" or library is None:
        return TorchInt8Linear(plain.weight, plain.bias)
    return CpuInt8Linear(library, plain.weight, plain.bias, is_gated=plain.is_gated)
