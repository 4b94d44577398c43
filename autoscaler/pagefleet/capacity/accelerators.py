"""What an accelerator has: memory, and the speeds from which step times are predicted."""

from dataclasses import dataclass, replace

from pagefleet.capacity.errors import CannotPlan

GIB = 1024**3
LEAST_MEMORY_BYTES = 2**20
"""Less is a number whose unit was forgotten."""


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """Describe one accelerator; a speed that is None is not known, and then no time is predicted."""

    name: str
    kind: str
    """`cuda` or `cpu`: which of the engine's two back ends runs there."""
    memory_bytes: int | None
    """What its driver, or the machine or cgroup, reports in all."""
    bandwidth_bytes_per_s: float | None = None
    """Of its memory, by the data sheet; on a CPU measured."""
    flops_bfloat16: float | None = None
    """Dense, multiplications and additions each counted; float32 on a CPU without bfloat16 instructions."""
    flops_int8: float | None = None
    flops_fp8: float | None = None
    has_fast_bfloat16: bool = True

    @property
    def speeds_are_known(self) -> bool:
        """Whether step times can be predicted."""
        return self.bandwidth_bytes_per_s is not None and self.flops_bfloat16 is not None


def _cuda(
    name: str,
    memory_gib: float,
    bandwidth_gb_per_s: float,
    bfloat16_tflops: float,
    int8_tops: float,
    fp8_tflops: float | None = None,
) -> Accelerator:
    return Accelerator(
        name=name,
        kind="cuda",
        memory_bytes=round(memory_gib * GIB),
        bandwidth_bytes_per_s=bandwidth_gb_per_s * 1e9,
        flops_bfloat16=bfloat16_tflops * 1e12,
        flops_int8=int8_tops * 1e12,
        flops_fp8=None if fp8_tflops is None else fp8_tflops * 1e12,
    )


# Memory as CUDA reports it, less than the name says; speeds from NVIDIA's data sheets, without sparsity.
_KNOWN = (
    _cuda("a10-24g", 22.06, 600, 125, 250),
    _cuda("a100-40g", 39.39, 1555, 312, 624),
    _cuda("a100-80g", 79.14, 2039, 312, 624),
    _cuda("b200-180g", 178.35, 8000, 2250, 4500, 4500),
    _cuda("h100-80g", 79.18, 3350, 989, 1979, 1979),
    _cuda("h200-141g", 139.72, 4800, 989, 1979, 1979),
    _cuda("l4-24g", 22.03, 300, 121, 242, 242),
    _cuda("l40s-48g", 44.39, 864, 362, 733, 733),
    _cuda("rtx4090-24g", 23.52, 1008, 165, 660, 330),
    Accelerator(name="cpu", kind="cpu", memory_bytes=None, has_fast_bfloat16=False),
)
ACCELERATORS: dict[str, Accelerator] = {accelerator.name: accelerator for accelerator in _KNOWN}
"""By name. A CPU's numbers are its machine's: they are given or measured, never assumed."""

PRODUCTS = {
    "NVIDIA-A10": "a10-24g",
    "NVIDIA-A100-PCIE-40GB": "a100-40g",
    "NVIDIA-A100-SXM4-40GB": "a100-40g",
    "NVIDIA-A100-SXM4-80GB": "a100-80g",
    "NVIDIA-B200": "b200-180g",
    "NVIDIA-GeForce-RTX-4090": "rtx4090-24g",
    "NVIDIA-H100-80GB-HBM3": "h100-80g",
    "NVIDIA-H200": "h200-141g",
    "NVIDIA-L4": "l4-24g",
    "NVIDIA-L40S": "l40s-48g",
}
"""Names by what NVIDIA's feature discovery calls a device on its node; one with other speeds, or a part of one, is none
of them."""


def find_accelerator(
    name: str | None,
    *,
    memory_bytes: int | None = None,
    bandwidth_bytes_per_s: float | None = None,
    flops_bfloat16: float | None = None,
) -> Accelerator:
    """Return a known accelerator with what is overridden, or an unnamed GPU of so much memory; raises CannotPlan.

    A device that comes in one size goes by its name alone, such as h100.
    """
    known = Accelerator(name="gpu", kind="cuda", memory_bytes=None) if name is None else _known(name)
    found = replace(
        known,
        memory_bytes=memory_bytes if memory_bytes is not None else known.memory_bytes,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s or known.bandwidth_bytes_per_s,
        flops_bfloat16=flops_bfloat16 or known.flops_bfloat16,
    )
    if found.memory_bytes is None:
        raise CannotPlan(f"accelerator {found.name} has no memory size: give it, for example 24GiB")
    if found.memory_bytes < LEAST_MEMORY_BYTES:
        raise CannotPlan(f"{found.memory_bytes} bytes of memory are less than 1 MiB: write a unit, for example 24GiB")
    for what, speed in (("bandwidth", bandwidth_bytes_per_s), ("FLOP/s", flops_bfloat16)):
        if speed is not None and not 0 < speed < float("inf"):
            raise CannotPlan(f"a {what} of {speed:g} is no speed: write a number above 0, or leave it out")
    return found


def _known(name: str) -> Accelerator:
    sizes = [key for key in ACCELERATORS if key == name or key.partition("-")[0] == name]
    if not sizes:
        raise CannotPlan(
            f"accelerator {name} is unknown: known are {', '.join(ACCELERATORS)}; for another, give its memory alone"
        )
    if len(sizes) > 1:
        raise CannotPlan(f"accelerator {name} comes in several sizes: write {' or '.join(sizes)}")
    return ACCELERATORS[sizes[0]]
