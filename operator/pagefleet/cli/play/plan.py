"""Which replicas to start and to stop so that what runs becomes what is wanted. Pure.

A changed service is replaced without a gap: new replicas start first, and each old one that serves stays until a new
one is ready. Old replicas that do not serve leave at once. A change that cannot start so keeps what served before.
A replica that is one too many retires, and is called back before another one starts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pagefleet.cli.play.leaving import PresentReplica, leave_first
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
    most_replicas: int | None = None
    """Replicas that autoscaling may make of it; None where `replicas` stay."""

    @property
    def shares(self) -> int:
        """Return the replicas that the machine is divided for."""
        return max(self.replicas, self.most_replicas or 0)


@dataclass(frozen=True, slots=True)
class Changes:
    """List what to do now."""

    start: int = 0
    stop: tuple[int, ...] = ()
    """Numbers of the replicas to drain for good."""
    retire: tuple[int, ...] = ()
    """Numbers of the replicas to drain until they are called back or idle."""
    call_back: tuple[int, ...] = ()


def plan_changes(wanted: WantedService | None, present: Sequence[PresentReplica]) -> Changes:
    """Compare one service with its replicas; None means that the service is gone from the files."""
    staying = [replica for replica in present if not replica.leaves]
    if wanted is None:
        return Changes(stop=tuple(replica.number for replica in staying))
    current = [replica for replica in staying if replica.configuration == wanted.configuration]
    outdated = [replica for replica in staying if replica.configuration != wanted.configuration]
    if wanted.refusal:  # what runs of an older version goes on
        return Changes(stop=tuple(replica.number for replica in current))
    retiring = [replica for replica in current if replica.phase is Phase.RETIRING]
    active = [replica for replica in current if replica.phase is not Phase.RETIRING]
    surplus = leave_first(active)[: max(0, len(active) - wanted.replicas)]
    missing = max(0, wanted.replicas - len(active))
    back = leave_first(retiring)[::-1][:missing]
    ready = sum(replica.phase is Phase.READY for replica in active if replica not in surplus)
    useful = [replica for replica in outdated if replica.phase is Phase.READY]
    replaced = leave_first(useful)[: max(0, len(useful) - max(0, wanted.replicas - ready))]
    useless = [replica for replica in outdated if replica.phase is not Phase.READY]
    return Changes(
        start=missing - len(back),
        stop=_numbers((*(one for one in surplus if one.phase is not Phase.READY), *replaced, *useless)),
        retire=_numbers(one for one in surplus if one.phase is Phase.READY),
        call_back=_numbers(back),
    )


def _numbers(replicas: Iterable[PresentReplica]) -> tuple[int, ...]:
    return tuple(replica.number for replica in replicas)


def share_of_machine(services: Iterable[WantedService]) -> float:
    """Return the part of the machine's memory that each replica gets: all are alike, and refused ones have none."""
    return 1 / max(1, sum(service.shares for service in services if not service.refusal))
