"""Choose the linear back end by measuring: which is fastest depends on the CPU, its instructions and its libraries."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch.nn.functional import linear

from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.cpu.library import load_library
from pagefleet.engine.kernels.cpu.linear import CpuLinear, OneDnnLinear, exact_product
from pagefleet.engine.layers.linear import Linear, LinearKernel

logger = logging.getLogger(__name__)

LINEAR_BACKENDS = ("c", "onednn", "torch")
"""`torch` leaves the weight as it is."""

PROBE_ROWS = (1, 8, 64)
"""A decode alone, a few decodes, a busy step."""

PROBE_OUTPUTS = 4096
"""Outputs of the largest linear that are probed: a vocabulary may have a quarter of a million."""

PROBE_REPEATS = 5

NEEDED_GAIN = 0.9
"""Another back end must take less than this share of the C product's time: only that fuses what follows, and gives
the same bits for any batch."""

RELATIVE_ERROR = {torch.float32: 1e-4, torch.bfloat16: 2e-2}

Product = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Probe:
    """Hold what a back end took, in seconds, for each number of rows of `PROBE_ROWS`."""

    name: str
    seconds: tuple[float, ...]

    def share_of(self, other: "Probe") -> float:
        """Return this probe's time as a share of another's, averaged over the numbers of rows."""
        shares = [mine / theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True)]
        return sum(shares) / len(shares)


def use_linear_backend(name: str, linears: Iterable[Linear]) -> str:
    """Give all linears to one back end and return its name; raises StartupError when `name` cannot be had.

    `auto` probes on a CPU. Each weight is packed and let go of before the next, so memory holds one copy.
    """
    if name not in ("auto", *LINEAR_BACKENDS):
        raise StartupError(f"--linear-backend {name} is unknown; use auto, {', '.join(LINEAR_BACKENDS)}")
    pending = list(linears)
    if not pending:
        if name not in ("auto", "torch"):
            raise StartupError(f"--linear-backend {name}: this model keeps its own linears; use --linear-backend auto")
        return "torch"
    weights = [each.weight for each in pending if each.weight is not None]
    if reason := _c_unsupported(weights):
        if name == "c":
            raise StartupError(f"--linear-backend c: {reason}; use --linear-backend auto")
        logger.info("linears not in C: %s", reason)
    if name == "auto":
        name = choose(probe(max(weights, key=torch.numel), with_c=reason is None)) if _on_cpu(weights) else "torch"
    if name == "onednn" and not _on_cpu(weights):
        raise StartupError("--linear-backend onednn computes on the CPU; use --linear-backend auto")
    if name != "torch":
        try:
            for each in pending:
                each.use(make_kernel(name, each))
        except (AttributeError, RuntimeError) as error:  # oneDNN has no bfloat16 on every CPU
            raise StartupError(f"--linear-backend {name}: {error}; use --linear-backend auto") from error
    return name


def make_kernel(name: str, plain: Linear) -> LinearKernel:
    """Pack a linear for the back end `c` or `onednn`."""
    if plain.weight is None:
        raise ValueError("the linear is packed already")
    if name == "onednn":
        return OneDnnLinear(plain.weight, plain.bias)
    library = load_library()
    if library is None:
        raise ValueError("there is no library")
    return CpuLinear(library, plain.weight, plain.bias, is_gated=plain.is_gated)


def choose(probes: list[Probe]) -> str:
    """Return the fastest back end's name; C, where it is among them, unless another is clearly faster."""
    by_name = {each.name: each for each in probes}
    standard = by_name.get("c", by_name["torch"])
    fastest = min(probes, key=lambda each: each.share_of(standard))
    return fastest.name if fastest.share_of(standard) < NEEDED_GAIN else standard.name


def probe(weight: torch.Tensor, *, with_c: bool) -> list[Probe]:
    """Measure the back ends whose result is right on this [outputs, inputs] weight; torch is always among them."""
    weight = weight[:PROBE_OUTPUTS]
    inputs = probe_inputs(weight)
    products: dict[str, Product] = {}
    for name in ("c", "onednn") if with_c else ("onednn",):
        try:
            kernel = make_kernel(name, Linear(weight))
            if is_right(kernel, inputs[1], weight):
                products[name] = kernel
        except (AttributeError, RuntimeError) as error:  # a torch without these private operators, or without oneDNN
            logger.info("linear back end %s cannot be used: %s", name, error)
    products["torch"] = lambda rows: linear(rows, weight)
    return measure("linear", products, inputs)


def probe_inputs(weight: torch.Tensor) -> list[torch.Tensor]:
    """Return rows for a weight, one tensor for each number of rows of `PROBE_ROWS`."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, weight.shape[1], generator=generator).to(weight.dtype) for rows in PROBE_ROWS]


@torch.inference_mode()
def measure(kind: str, products: dict[str, Product], inputs: list[torch.Tensor]) -> list[Probe]:
    """Time the back ends, by name, on the same inputs; `kind` names them in the log."""
    best = {name: [float("inf")] * len(inputs) for name in products}
    for _ in range(PROBE_REPEATS):
        for index, rows in enumerate(inputs):
            for name, product in products.items():  # interleaved: the machine's speed changes from moment to moment
                started_s = time.perf_counter()
                product(rows)
                best[name][index] = min(best[name][index], time.perf_counter() - started_s)
    probes = [Probe(name, tuple(seconds)) for name, seconds in best.items()]
    for each in probes:
        logger.info(
            "%s back end %s: %s",
            kind,
            each.name,
            ", ".join(f"{s * 1e6:.0f} µs for {rows} rows" for rows, s in zip(PROBE_ROWS, each.seconds, strict=True)),
        )
    return probes


def is_right(product: Product, rows: torch.Tensor, weight: torch.Tensor) -> bool:
    """Tell whether a product is that of float32, as near as its dtype can be."""
    expected = exact_product(rows, weight)
    error = (product(rows).float() - expected).abs().max()
    return bool(error <= RELATIVE_ERROR[weight.dtype] * expected.abs().max())


def _on_cpu(weights: list[torch.Tensor]) -> bool:
    return all(weight.device.type == "cpu" for weight in weights)


def _c_unsupported(weights: list[torch.Tensor]) -> str | None:
    reasons = (CpuLinear.unsupported(weight) for weight in weights)
    reason = next((reason for reason in reasons if reason is not None), None)
    return reason or ("the kernels cannot be loaded" if load_library() is None else None)
