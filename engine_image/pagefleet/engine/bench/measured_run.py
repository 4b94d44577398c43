"""One timed run of one engine over some requests: its tokens, its seconds, and how busy the machine was beside it."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import psutil

from pagefleet.engine.bench.roofline import StepRows
from pagefleet.engine.bench.workload import BenchRequest

OnTokens = Callable[[int], object]
"""Gets the number of output tokens that have just come, for a progress bar."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """Hold what one run produced and took."""

    outputs: list[list[int]]
    """The tokens of each request, without its prompt, cut to what was asked for."""
    wall_s: float
    own_cpu_s: float
    other_busy_cores: float
    """Cores that other processes kept busy meanwhile; anything well above 0 makes times unreliable."""
    steps: list[StepRows] = field(default_factory=list)
    """Empty when the engine does not tell."""
    texts: list[str] = field(default_factory=list)
    """The outputs as text; empty when the run made none."""
    text_cpu_s: float | None = None
    """CPU time of it that making the texts took, where that is known."""

    @property
    def output_tokens(self) -> int:
        """Count the tokens that were asked for and came."""
        return sum(map(len, self.outputs))


class Contestant(Protocol):
    """Run requests to their ends, greedily, with exactly the output tokens that each asks for."""

    @property
    def name(self) -> str:
        """Name the contestant in tables and JSON."""

    @property
    def text(self) -> str:
        """Say when tokens become text, for the reader of the table."""

    def run(self, requests: Sequence[BenchRequest], on_tokens: OnTokens) -> MeasuredRun:
        """Run all requests, which are there at once."""


class Meter(AbstractContextManager["Meter"]):
    """Measure the wall time, this process's CPU time and what else the machine did between enter and exit."""

    wall_s = own_cpu_s = other_busy_cores = 0.0

    def __enter__(self) -> "Meter":
        self._busy_s = _busy_s()
        self._own_s = time.process_time()
        self._started_s = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s = time.perf_counter() - self._started_s
        self.own_cpu_s = time.process_time() - self._own_s
        others_s = _busy_s() - self._busy_s - self.own_cpu_s
        self.other_busy_cores = max(0.0, others_s / self.wall_s)


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + getattr(times, "nice", 0.0))
