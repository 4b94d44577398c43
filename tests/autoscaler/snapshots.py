"""Build snapshots in one line, and run `decide` over many of them."""

from collections.abc import Collection, Iterable
from typing import Any

from pagefleet.autoscaler.decide import decide
from pagefleet.autoscaler.decision import Decision
from pagefleet.autoscaler.settings import ServiceSpeed, Settings
from pagefleet.autoscaler.snapshot import Reading, Replica, ReplicaPhase, Snapshot
from pagefleet.autoscaler.state import State
from pagefleet.capacity.step_time import StepTime

SPEED = ServiceSpeed(
    step=StepTime(base_s=0.018, prefill_token_s=79e-6, kv_token_s=35e-9, sequence_s=20e-6),
    kv_tokens=410_000,
    block_size=16,
    max_num_seqs=256,
    max_num_batched_tokens=2048,
)
SETTINGS = Settings(speed=SPEED, max_replicas=20, least_corrector=1.0)
"""Without trust that grows with time, so that numbers can be said beforehand."""
TICK_S = 5.0
NOTHING: dict[str, Any] = dict.fromkeys(Reading.__dataclass_fields__, 0) | {"blocks_total": 25_625}


def reading(read_s: float, **values: Any) -> Reading:
    """Return a report with zeros where nothing is said."""
    return Reading(**{**NOTHING, "read_s": read_s, **values})


class Load:
    """Replicas that each get the same share of a rate, of requests with prompts of 1,155 and answers of 211 tokens."""

    def __init__(self, names: Iterable[str], *, rate_per_s: float, **gauges: Any) -> None:
        self.rate_per_s, self.gauges = rate_per_s, gauges
        self.counters: dict[str, dict[str, float]] = {name: {} for name in names}
        self.latest: dict[str, Reading] = {}

    def add(self, seconds: float) -> None:
        """Let time pass."""
        requests = self.rate_per_s * seconds / max(1, len(self.counters))
        for counters in self.counters.values():
            for name, each in (
                ("arrivals_total", 1),
                ("finished_total", 1),
                ("prompt_tokens_total", 1155),
                ("finished_output_tokens_total", 211),
                ("first_tokens_total", 1),
            ):
                counters[name] = counters.get(name, 0) + each * requests

    def replicas(self, now_s: float, *, silent: Collection[str] = (), never: bool = False) -> tuple[Replica, ...]:
        """Return the ready replicas; silent ones with the report that they last had, or with none ever."""
        for name, counters in self.counters.items():
            if name not in silent:
                self.latest[name] = reading(now_s, **counters, **self.gauges)
        return tuple(ready(name, None if never else self.latest.get(name)) for name in self.counters)


def ready(name: str, report: Reading | None, *, created_s: float = -1000.0) -> Replica:
    """Return a replica that has been serving for long."""
    return Replica(name=name, phase=ReplicaPhase.READY, created_s=created_s, ready_s=created_s + 120, reading=report)


def pending(name: str, created_s: float) -> Replica:
    """Return a replica that loads."""
    return Replica(name=name, phase=ReplicaPhase.PENDING, created_s=created_s)


class Run:
    """Decide again and again, and set `specified` to what was decided."""

    def __init__(self, settings: Settings = SETTINGS, *, specified: int = 1) -> None:
        self.settings, self.specified = settings, specified
        self.state, self.decisions = State(), list[Decision]()

    def tick(self, now_s: float, replicas: Iterable[Replica], **more: Any) -> Decision:
        """Decide once."""
        snapshot = Snapshot(time_s=now_s, replicas=tuple(replicas), specified=self.specified, **more)
        decision, self.state = decide(snapshot, self.state, self.settings)
        self.decisions.append(decision)
        self.specified = decision.desired
        return decision

    def steady(self, load: Load, *, seconds: float, begin_s: float = 0.0) -> Decision:
        """Decide every tick while the load stays as it is."""
        now_s = begin_s
        while now_s < begin_s + seconds:
            load.add(TICK_S)
            now_s += TICK_S
            self.tick(now_s, load.replicas(now_s))
        return self.decisions[-1]
