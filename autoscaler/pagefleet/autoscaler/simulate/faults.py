"""What goes wrong in a simulated fleet, and when."""

from dataclasses import dataclass, replace

from pagefleet.autoscaler.snapshot import Reading

GARBAGE = 10**14
"""A counter that no engine reaches."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Scripted faults; the default has none."""

    silent_from_to_s: tuple[float, float] = (0.0, 0.0)
    """No report arrives in this time from `silent_replicas`."""
    silent_replicas: frozenset[str] | None = None
    """Replicas that fall silent; None is all."""
    stuck_from_to_s: tuple[float, float] = (0.0, 0.0)
    """Pods created in this time never become ready."""
    slow_replicas: frozenset[str] = frozenset()
    """Replicas whose steps take `slow_factor` times as long."""
    slow_factor: float = 1.0
    garbage_from_to_s: tuple[float, float] = (0.0, 0.0)
    """Reports of `garbage_replicas` made in this time hold numbers that cannot be."""
    garbage_replicas: frozenset[str] = frozenset()
    counters_begin_again_s: tuple[tuple[float, str], ...] = ()
    """Times at which an engine restarts and counts from 0 again."""
    clock_jump: tuple[float, float] = (float("inf"), 0.0)
    """From when on the autoscaler's clock is ahead, and by how many seconds; less than 0 is behind."""
    written_by_others: tuple[tuple[float, int], ...] = ()
    """Times at which somebody else sets the number of replicas."""

    def is_silent(self, name: str, now_s: float) -> bool:
        """Tell whether this replica's report is lost now."""
        begin_s, end_s = self.silent_from_to_s
        return begin_s <= now_s < end_s and (self.silent_replicas is None or name in self.silent_replicas)

    def report(self, name: str, reading: Reading) -> Reading:
        """Return what arrives of a report."""
        begin_s, end_s = self.garbage_from_to_s
        if name in self.garbage_replicas and begin_s <= reading.read_s < end_s:
            return replace(reading, arrivals_total=GARBAGE, queue_depth=-1)
        return reading

    def clock_s(self, now_s: float) -> float:
        """Return what the autoscaler's clock shows."""
        begin_s, ahead_s = self.clock_jump
        return now_s + ahead_s if now_s >= begin_s else now_s

    def cold_start_s(self, created_s: float, drawn_s: float) -> float | None:
        """Return the time that this pod needs to become ready; None is never."""
        begin_s, end_s = self.stuck_from_to_s
        return None if begin_s <= created_s < end_s else drawn_s

    def slowdown(self, name: str) -> float:
        """Return the factor on the time of this replica's steps."""
        return self.slow_factor if name in self.slow_replicas else 1.0
