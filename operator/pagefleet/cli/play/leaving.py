"""Which replica leaves first when there are too many. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from pagefleet.cli.play.replica import Phase


@dataclass(frozen=True, slots=True)
class PresentReplica:
    """Describe one replica that has not left yet."""

    number: int
    configuration: tuple[str, ...]
    phase: Phase
    in_flight: int = 0
    cached_blocks: int = 0
    """Blocks that only its prefix cache holds: what requests to come would miss."""

    @property
    def leaves(self) -> bool:
        """Tell whether it was already asked to stop."""
        return self.phase in (Phase.DRAINING, Phase.STOPPED)


def leave_first(replicas: Iterable[PresentReplica]) -> list[PresentReplica]:
    """Order replicas so that the one that costs least to lose comes first.

    One that is not ready, then the one with the fewest requests in flight, the coldest prefix cache, the youngest.
    """
    return sorted(
        replicas,
        key=lambda one: (one.phase in (Phase.READY, Phase.RETIRING), one.in_flight, one.cached_blocks, -one.number),
    )
