"""Run contestants in turns, so that a machine whose speed changes treats them alike, and compare what they reached."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tqdm import tqdm

from pagefleet.engine.bench.measured_run import Contestant, MeasuredRun
from pagefleet.engine.bench.workload import BenchRequest


@dataclass
class Entry:
    """Enter one contestant with the requests that it runs in each round."""

    contestant: Contestant
    requests: Sequence[BenchRequest]
    part: str
    """Which of the requests these are, for the reader."""
    runs: list[MeasuredRun] = field(default_factory=list)

    @property
    def wall_s(self) -> float:
        """Return the seconds of all rounds."""
        return sum(run.wall_s for run in self.runs)

    @property
    def tokens_per_s(self) -> float:
        """Return the output tokens per second of wall time over all rounds."""
        return sum(run.output_tokens for run in self.runs) / self.wall_s

    @property
    def tokens_per_cpu_s(self) -> float:
        """Return the output tokens per second of this process's CPU time, which other processes disturb less."""
        return sum(run.output_tokens for run in self.runs) / sum(run.own_cpu_s for run in self.runs)

    @property
    def other_busy_cores(self) -> float:
        """Return the cores that others kept busy, averaged over the time of all rounds."""
        return sum(run.other_busy_cores * run.wall_s for run in self.runs) / self.wall_s

    def summary(self) -> dict[str, object]:
        """Return what JSON holds of the contestant."""
        return {
            "requests": len(self.requests),
            "part": self.part,
            "text": self.contestant.text,
            "rounds": len(self.runs),
            "steps": len(self.runs[0].steps) or None,
            "output_tokens": self.runs[0].output_tokens,
            "output_tokens_per_second": round(self.tokens_per_s, 2),
            "output_tokens_per_cpu_second": round(self.tokens_per_cpu_s, 2),
            "wall_seconds": [round(run.wall_s, 3) for run in self.runs],
            "other_busy_cores": round(self.other_busy_cores, 2),
        }


def run_rounds(entries: Sequence[Entry], rounds: int, *, between: Callable[[], object] = lambda: None) -> None:
    """Let every contestant run its requests once in each round; `between` is called before each round."""
    tokens = rounds * sum(request.output_tokens for entry in entries for request in entry.requests)
    with tqdm(total=tokens, unit="tok", disable=None) as bar:
        for _ in range(rounds):
            between()
            for entry in entries:
                bar.set_description(entry.contestant.name)
                entry.runs.append(entry.contestant.run(entry.requests, bar.update))


def same_outputs(ours: Entry, theirs: Entry) -> tuple[int, int]:
    """Return how many requests of the first round got the same tokens from both, and of how many."""
    by_prompt = {
        tuple(request.prompt_token_ids): output
        for request, output in zip(ours.requests, ours.runs[0].outputs, strict=True)
    }
    pairs = zip(theirs.requests, theirs.runs[0].outputs, strict=True)
    return sum(by_prompt[tuple(request.prompt_token_ids)] == output for request, output in pairs), len(theirs.requests)
