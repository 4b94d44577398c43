"""What goes wrong in a simulated fleet, and when."""

from dataclasses import dataclass


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

    def is_silent(self, name: str, now_s: float) -> bool:
        """Tell whether this replica's report is lost now."""
        begin_s, end_s = self.silent_from_to_s
        return begin_s <= now_s < end_s and (self.silent_replicas is None or name in self.silent_replicas)

    def cold_start_s(self, created_s: float, drawn_s: float) -> float | None:
        """Return the time that this pod needs to become ready; None is never."""
        begin_s, end_s = self.stuck_from_to_s
        return None if begin_s <= created_s < end_s else drawn_s

    def slowdown(self, name: str) -> float:
        """Return the factor on the time of this replica's steps."""
        return self.slow_factor if name in self.slow_replicas else 1.0
