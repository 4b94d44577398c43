"""What a soak prints and writes: requests by kind and outcome, memory levels, and the samples."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pagefleet.engine.bench.soak_memory import MIB, MemoryLevels
from pagefleet.engine.bench.soak_outcomes import Outcome, Result
from pagefleet.engine.bench.soak_samples import Sample
from pagefleet.engine.bench.soak_verdict import Aftermath
from pagefleet.engine.bench.tables import text_table


@dataclass(frozen=True, kw_only=True)
class Soaked:
    """All that a soak found."""

    server: str
    duration_s: float
    warm_up_s: float
    clients: int
    seed: int
    results: Sequence[Result]
    samples: Sequence[Sample]
    memory: Mapping[str, MemoryLevels | None]
    """By the name of the process."""
    aftermath: Aftermath

    def grew(self, field: str) -> float:
        """Return by how much a counter of `/capacity` grew from the first sample to the last."""
        first, last = self.samples[0].capacity[field] or 0, self.samples[-1].capacity[field] or 0
        return last - first

    @property
    def most_waiting(self) -> float:
        """Return the longest queue that a sample saw."""
        return max(sample.capacity["queue_depth"] or 0 for sample in self.samples)


def report_of(soaked: Soaked, broken: Sequence[str]) -> dict[str, Any]:
    """Return the report as JSON holds it."""
    results = soaked.results
    by_kind: dict[str, Counter[str]] = {}
    for result in results:
        by_kind.setdefault(result.kind, Counter())[result.outcome.value] += 1
    return {
        "server": soaked.server,
        "duration_seconds": soaked.duration_s,
        "warm_up_seconds": soaked.warm_up_s,
        "clients": soaked.clients,
        "seed": soaked.seed,
        "requests": len(results),
        "outcomes": _outcomes(results),
        "outcomes_by_kind": {kind: dict(counts) for kind, counts in sorted(by_kind.items())},
        "statuses": dict(sorted(Counter(str(result.status) for result in results).items())),
        "lost": [asdict(result) for result in results if result.outcome is Outcome.LOST],
        "prompt_tokens": sum(result.prompt_tokens for result in results),
        "completion_tokens": sum(result.completion_tokens for result in results),
        "preemptions": soaked.grew("preemptions_total"),
        "prefix_hit_tokens": soaked.grew("prefix_hit_tokens_total"),
        "most_waiting": soaked.most_waiting,
        "memory": {process: None if levels is None else _levels(levels) for process, levels in soaked.memory.items()},
        "aftermath": asdict(soaked.aftermath),
        "samples": [sample.as_row() for sample in soaked.samples],
        "broken_rules": list(broken),
    }


def write_tables(soaked: Soaked, say: Callable[[str], object]) -> None:
    """Print the report for people."""
    say(
        f"{soaked.server}, {soaked.clients} clients for {soaked.duration_s:g} s, seed {soaked.seed}: "
        f"{len(soaked.results)} requests, {soaked.grew('preemptions_total'):g} preemptions, at most "
        f"{soaked.most_waiting:g} waiting, "
        f"{soaked.grew('prefix_hit_tokens_total'):g} prompt tokens from the prefix cache"
    )
    kinds = sorted({result.kind for result in soaked.results})
    rows = [_requests_row(kind, [result for result in soaked.results if result.kind == kind]) for kind in kinds]
    header = ("requests", *(outcome.value for outcome in Outcome), "prompt tokens", "output tokens")
    say(text_table(header, [*rows, _requests_row("all", soaked.results)]))
    if not soaked.memory:
        say("memory was not looked at: name the API process with --pid where it runs on this machine")
        return
    say(
        text_table(
            (f"resident MiB, after {soaked.warm_up_s:g} s", "first quarter", "last quarter", "growth", "MiB/hour"),
            [_memory_row(process, levels) for process, levels in soaked.memory.items()],
        )
    )


def _requests_row(name: str, results: Sequence[Result]) -> tuple[object, ...]:
    prompt_tokens = sum(result.prompt_tokens for result in results)
    return (name, *_outcomes(results).values(), prompt_tokens, sum(result.completion_tokens for result in results))


def _outcomes(results: Sequence[Result]) -> dict[str, int]:
    counts = Counter(result.outcome for result in results)
    return {outcome.value: counts[outcome] for outcome in Outcome}


def _levels(levels: MemoryLevels) -> dict[str, float]:
    return {**asdict(levels), "growth": round(levels.growth, 5), "mib_per_hour": round(levels.mib_per_hour, 2)}


def _memory_row(process: str, levels: MemoryLevels | None) -> tuple[str, ...]:
    if levels is None:
        return (process, "-", "-", "-", "-")
    return (
        process,
        f"{levels.first_bytes / MIB:.1f}",
        f"{levels.last_bytes / MIB:.1f}",
        f"{levels.growth:+.2%}",
        f"{levels.mib_per_hour:+.1f}",
    )
