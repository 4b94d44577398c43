"""What a decision is made from: one reading per replica, each with its age and its quality. Unknown is never zero."""

from dataclasses import dataclass
from enum import StrEnum


class ReplicaPhase(StrEnum):
    """Where a replica is in its life. Only a ready one is given new requests."""

    PENDING = "Pending"
    READY = "Ready"
    DRAINING = "Draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One `/capacity` report. Totals count since the engine's start, so what a lost report held is in the next one."""

    read_s: float
    """When it was made, on the clock of the snapshots."""
    blocks_active: int
    blocks_total: int
    queue_depth: int
    tokens_queued: int
    queue_age_s: float
    running: int
    in_flight: int
    arrivals_total: int
    finished_total: int
    prompt_tokens_total: int
    prefix_hit_tokens_total: int
    finished_output_tokens_total: int
    """Tokens of the answers that have ended."""
    preemptions_total: int
    first_tokens_total: int
    late_first_tokens_total: int
    """First tokens that came later than the objective."""
    slow_answers_total: int
    """Finished answers whose mean time between tokens was longer than the objective."""
    steps_total: int
    step_seconds_total: float
    computed_tokens_total: int
    """Prompt tokens that steps computed."""
    kv_tokens_read_total: int
    """Tokens in the cache that decoding sequences read, summed over steps."""
    sequence_steps_total: int
    """Decoding sequences, summed over steps."""

    @property
    def admitted_total(self) -> int:
        """Return the requests that have left the queue."""
        return max(0, self.arrivals_total - self.queue_depth)

    @property
    def occupancy(self) -> float:
        """Return the share of blocks that live sequences hold."""
        return self.blocks_active / self.blocks_total if self.blocks_total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica as it is known at the moment of the decision."""

    name: str
    phase: ReplicaPhase
    created_s: float
    ready_s: float | None = None
    """When it became ready; None until then."""
    reading: Reading | None = None
    """Its latest report; None when there was none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A service at one moment."""

    time_s: float
    replicas: tuple[Replica, ...]
    specified: int
    """`spec.replicas`, as it was read."""
    held_requests: int = 0
    """Requests that a gateway holds because no replica is ready."""
    schedulable: int | None = None
    """Replicas for which there is room beside those that exist; None is not known."""

    @property
    def ready(self) -> tuple[Replica, ...]:
        """Return the replicas that take requests."""
        return tuple(replica for replica in self.replicas if replica.phase is ReplicaPhase.READY)

    @property
    def pending(self) -> tuple[Replica, ...]:
        """Return the replicas that are on their way."""
        return tuple(replica for replica in self.replicas if replica.phase is ReplicaPhase.PENDING)

    def fresh(self, oldest_s: float) -> tuple[Replica, ...]:
        """Return the ready replicas whose report is not older than this."""
        return tuple(
            replica
            for replica in self.ready
            if replica.reading is not None and self.time_s - replica.reading.read_s <= oldest_s
        )

    @property
    def ready_readings(self) -> list[Reading]:
        """Return the latest reports of the ready replicas, however old."""
        return [replica.reading for replica in self.ready if replica.reading is not None]

    def fresh_readings(self, oldest_s: float) -> list[Reading]:
        """Return the reports of the ready replicas that are not older than this."""
        return [reading for reading in self.ready_readings if self.time_s - reading.read_s <= oldest_s]
