"""What a soak looks at every second: the memory of both processes, `/capacity` and `/metrics`."""

from collections.abc import Mapping
from dataclasses import dataclass

import httpx
import psutil

from pagefleet.api.capacity import CapacityReport
from pagefleet.engine.bench.server_metrics import Samples, parse_metrics
from pagefleet.engine.bench.soak_memory import MemoryPoint
from pagefleet.engine.bench.soak_verdict import Capacity
from pagefleet.engine.errors import EngineDead

CAPACITY_FIELDS = (
    *("blocks_total", "blocks_active", "blocks_cached", "blocks_free"),
    *("in_flight", "running", "queue_depth", "tokens_queued"),
    *("preemptions_total", "prefix_hit_tokens_total", "prompt_tokens_total", "generation_tokens_total"),
)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One look at the server."""

    at_s: float
    """Since the first request."""
    resident_bytes: Mapping[str, int]
    """By the name of the process."""
    capacity: Capacity
    metrics: int
    """Number of samples in `/metrics`: a label without bounds would let it grow."""

    def as_row(self) -> dict[str, float | None]:
        """Return it as one flat row."""
        resident = {f"{process}_resident_bytes": value for process, value in self.resident_bytes.items()}
        return {"at_s": round(self.at_s, 2), **resident, "metrics": self.metrics, **self.capacity}


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Look at one server."""

    admin: httpx.AsyncClient
    processes: Mapping[str, int]
    """Process ids by name; none when the server runs elsewhere."""

    async def sample(self, at_s: float) -> Sample:
        """Look once; raises EngineDead when the server is gone."""
        return Sample(
            at_s=at_s,
            resident_bytes={name: _resident_bytes(name, number) for name, number in self.processes.items()},
            capacity=capacity_numbers(await self.report()),
            metrics=len(await self.metrics()),
        )

    async def report(self) -> CapacityReport:
        """Return `/capacity`; raises EngineDead."""
        return CapacityReport.model_validate_json(await self._get("/capacity"))

    async def metrics(self) -> Samples:
        """Return `/metrics`; raises EngineDead."""
        return parse_metrics(await self._get("/metrics"))

    async def _get(self, path: str) -> str:
        try:
            return (await self.admin.get(path)).raise_for_status().text
        except httpx.HTTPError as error:
            raise EngineDead(
                f"the server's admin port does not answer {path}: {type(error).__name__} {error}"
            ) from error


def capacity_numbers(report: CapacityReport) -> Capacity:
    """Return the numbers that a soak keeps of a report."""
    return {name: getattr(report, name) for name in CAPACITY_FIELDS}


def memory_points(samples: list[Sample], process: str) -> list[MemoryPoint]:
    """Return one process's memory over time."""
    return [MemoryPoint(sample.at_s, sample.resident_bytes[process]) for sample in samples]


def _resident_bytes(name: str, process_id: int) -> int:
    try:
        return int(psutil.Process(process_id).memory_info().rss)
    except psutil.Error as error:
        raise EngineDead(f"the server's {name} process {process_id} is gone") from error
