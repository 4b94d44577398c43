"""Whether a process's resident memory stays flat, from soon after the start to the end. Pure.

A level is the median of a quarter of the samples, so that a single large body, or one long prompt, does not count.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

WARM_UP_SHARE = 0.2
LEAST_WARM_UP_S = 30.0
"""KV pages, tokens' bytes, threads and their allocator arenas take no memory before their first use."""
SHORTEST_S = 2 * LEAST_WARM_UP_S
"""A shorter soak would be mostly warm-up."""
LEAST_SAMPLES = 8
"""Two in a quarter."""
MOST_GROWTH = 0.02

MIB = 2**20
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class MemoryPoint:
    """Resident bytes of one process at one time."""

    at_s: float
    bytes: int


@dataclass(frozen=True)
class MemoryLevels:
    """How much memory a process held in the first and in the last quarter."""

    first_bytes: int
    last_bytes: int
    between_s: float
    """From the middle of the first quarter to the middle of the last."""

    @property
    def growth(self) -> float:
        """Return the growth as a share of the first level; below 0 when it shrank."""
        return self.last_bytes / self.first_bytes - 1

    @property
    def mib_per_hour(self) -> float:
        """Return the slope between the two quarters."""
        return (self.last_bytes - self.first_bytes) / MIB / self.between_s * SECONDS_PER_HOUR

    @property
    def is_flat(self) -> bool:
        """Tell whether it grew by no more than is allowed; memory that is given back is no leak."""
        return self.growth <= MOST_GROWTH


def warm_up_s(duration_s: float) -> float:
    """Return how long the beginning of a soak is not judged: a fifth of it, and 30 seconds at least."""
    return max(LEAST_WARM_UP_S, WARM_UP_SHARE * duration_s)


def memory_levels(points: Sequence[MemoryPoint], *, after_s: float) -> MemoryLevels | None:
    """Compare the quarters of what follows `after_s`; None when too few samples are left to tell."""
    rest = [point for point in points if point.at_s >= after_s]
    if len(rest) < LEAST_SAMPLES:
        return None
    quarter = len(rest) // 4
    first, last = rest[:quarter], rest[-quarter:]
    return MemoryLevels(
        first_bytes=int(median(point.bytes for point in first)),
        last_bytes=int(median(point.bytes for point in last)),
        between_s=fmean(point.at_s for point in last) - fmean(point.at_s for point in first),
    )
