"""What this machine can do in this moment: matrix products per second and bytes per second, measured."""

import contextlib
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import linear

from pagefleet.engine.bench.roofline import MachineRates
from pagefleet.engine.kernels.cache import zeroed
from pagefleet.engine.kernels.cpu.probe import make_kernel
from pagefleet.engine.layers.linear import Linear

GEMM_ROWS = 256
GEMM_SIZE = 2048
STREAM_BYTES = 256 * 2**20
"""Larger than the caches of most machines."""

REPEATS = 15
"""Enough that one of them meets a quiet moment on most machines: a rate that is too low flatters the engine."""


@torch.inference_mode()
def measure_rates(dtype: torch.dtype, *, gemm_size: int = GEMM_SIZE, stream_bytes: int = STREAM_BYTES) -> MachineRates:
    """Measure a wide product and a pass over memory with torch and, where they can be had, the C kernels."""
    weight = torch.randn(gemm_size, gemm_size).to(dtype)
    rows = torch.randn(GEMM_ROWS, gemm_size).to(dtype)
    seconds = min(_best_s(product, rows) for product in _products(weight))
    columns = 1024
    stream_weight = zeroed((stream_bytes // columns // dtype.itemsize, columns), dtype, torch.device("cpu")).fill_(1)
    row = torch.ones(1, columns, dtype=dtype)
    # A product with one row reads the weight once, and a sum does too; C reads it in panels of huge pages.
    streams: list[Callable[[torch.Tensor], object]] = [*_products(stream_weight), lambda _: stream_weight.sum()]
    return MachineRates(
        gemm_flop_per_s=2 * GEMM_ROWS * gemm_size**2 / seconds,
        stream_bytes_per_s=stream_weight.nbytes / min(_best_s(stream, row) for stream in streams),
    )


def cpu_name() -> str:
    """Name the CPU as the system does, with family and model where the name alone says little."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    pairs = [line.partition(":") for line in reversed(lines)]  # reversed: the first core's facts stay
    facts: dict[str, str] = {key.strip(): value.strip() for key, _, value in pairs}
    name = facts.get("model name", platform.machine())
    if "cpu family" not in facts:
        return name
    return f"{name} (family {facts['cpu family']} model {facts.get('model', '?')})"


def _products(weight: torch.Tensor) -> list[Callable[[torch.Tensor], object]]:
    products: list[Callable[[torch.Tensor], object]] = [lambda rows: linear(rows, weight)]
    with contextlib.suppress(AttributeError, RuntimeError, ValueError):  # no C kernels on this machine
        products.append(make_kernel("c", Linear(weight)))
    return products


def _best_s(work: Callable[[torch.Tensor], object], rows: torch.Tensor) -> float:
    # One thread's own time leaves out what others take of its core; of several threads only the clock knows the time.
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    best = float("inf")
    for _ in range(REPEATS):
        started_s = clock()
        work(rows)
        best = min(best, clock() - started_s)
    return best
