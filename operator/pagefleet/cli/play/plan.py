"""Which replicas to start and to stop so that what runs becomes what is wanted. Pure.

A changed service is replaced without a gap: new replicas start first, and each old one that serves stays until a new
one is ready. Old replicas that do not serve leave at once. A change that cannot start so keeps what served before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pagefleet.cli.play.replica import Phase


@dataclass(frozen=True, slots=True)
class WantedService:
    """Say what should run for one service: what its manifest means on this machine."""

    name: str
    served_name: str
    replicas: int
    configuration: tuple[str, ...]
    """The engine's flags without ports and without the share of the memory, so scaling does not restart anything."""
    refusal: str = ""
    """Why it cannot run here, in one sentence; empty when it can."""


@dataclass(frozen=True, slots=True)
class PresentReplica:
    """Describe one replica that has not left yet."""

    number: int
    configuration: tuple[str, ...]
    phase: Phase
    in_flight: int = 0

    @property
    def leaves(self) -> bool:
        """Tell whether it was already asked to stop."""
        return self.phase in (Phase.DRAINING, Phase.STOPPED)


@dataclass(frozen=True, slots=True)
class Changes:
    """List what to do now."""

    start: int = 0
    stop: tuple[int, ...] = ()
    """Numbers of the replicas to drain."""


def plan_changes(wanted: WantedService | None, present: Sequence[PresentReplica]) -> Changes:
    """Compare one service with its replicas; None means that the service is gone from the files."""
    staying = [replica for replica in present if not replica.leaves]
    if wanted is None:
        return Changes(stop=tuple(replica.number for replica in staying))
    current = [replica for replica in staying if replica.configuration == wanted.configuration]
    outdated = [replica for replica in staying if replica.configuration != wanted.configuration]
    if wanted.refusal:  # what runs of an older version goes on
        return Changes(stop=tuple(replica.number for replica in current))
    surplus = sorted(current, key=_keep_last)[: max(0, len(current) - wanted.replicas)]
    ready = sum(replica.phase is Phase.READY for replica in current if replica not in surplus)
    useful = [replica for replica in outdated if replica.phase is Phase.READY]
    replaced = sorted(useful, key=_keep_last)[: max(0, len(useful) - max(0, wanted.replicas - ready))]
    useless = [replica for replica in outdated if replica.phase is not Phase.READY]
    return Changes(
        start=max(0, wanted.replicas - len(current)),
        stop=tuple(replica.number for replica in (*surplus, *replaced, *useless)),
    )


def _keep_last(replica: PresentReplica) -> tuple[bool, int, int]:
    """Order replicas so that the one that costs least to lose comes first: not ready, idle, youngest."""
    return (replica.phase is Phase.READY, replica.in_flight, -replica.number)


def share_of_machine(services: Iterable[WantedService]) -> float:
    """Return the part of the machine's memory that each replica gets: all are alike, and refused ones have none."""
    return 1 / max(1, sum(service.replicas for service in services if not service.refusal))
