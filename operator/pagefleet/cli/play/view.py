"""What people see of a service: one phase, one sentence, a few numbers. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pagefleet.api.capacity import CapacityReport
from pagefleet.api.v1alpha1 import ServicePhase
from pagefleet.autoscaler.decision import Decision
from pagefleet.cli.play.plan import WantedService
from pagefleet.cli.play.replica import Phase, ReplicaState

Number = TypeVar("Number", int, float)

HOPELESS_CRASHES = 3
"""Crashes in a row after which nobody waits for a service; its replicas are started again for ever."""
# While nothing answers, the most advanced replica speaks for the service.
_ADVANCEMENT = (Phase.LOADING, Phase.DOWNLOADING, Phase.STARTING, Phase.RESTARTING, Phase.FAILED)
_SERVICE_PHASES = {
    Phase.LOADING: ServicePhase.LOADING,
    Phase.DOWNLOADING: ServicePhase.DOWNLOADING,
    Phase.STARTING: ServicePhase.STARTING,
    Phase.RESTARTING: ServicePhase.STARTING,
    Phase.FAILED: ServicePhase.FAILED,
}


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """Show one replica."""

    number: int
    state: ReplicaState
    is_current: bool
    """Whether it runs what the files ask for now."""
    report: CapacityReport | None
    """Its latest report while it answers."""
    tokens_per_s: float | None
    log_path: Path


@dataclass(frozen=True, slots=True)
class ScalingView:
    """Show what the autoscaler decided last."""

    decision: Decision
    is_active: bool
    """Whether it is done, or only told."""
    wakes: bool
    """Whether a request starts the service from zero."""
    held_requests: int
    memory_note: str
    """Why this machine holds no more replicas; empty where it holds all that the user allows."""


@dataclass(frozen=True, slots=True)
class ServiceView:
    """Show one service. Unknown numbers are None."""

    name: str
    served_name: str
    phase: ServicePhase
    progress: str
    """What the start does now, such as `Downloading 63 %`; empty when nothing starts."""
    message: str
    """What is wrong and where to read more; empty when nothing is."""
    ready: int
    asked: int
    occupancy: float | None
    queue_depth: int | None
    tokens_per_s: float | None
    restarts: int
    crashes_in_a_row: int
    scaling: ScalingView | None = None
    """None where the number of replicas is fixed."""

    @property
    def is_hopeless(self) -> bool:
        """Tell whether waiting for it cannot help."""
        return self.phase is ServicePhase.FAILED or self.crashes_in_a_row >= HOPELESS_CRASHES

    @property
    def can_be_asked(self) -> bool:
        """Tell whether a request is answered: by a replica, or by one that it starts."""
        return bool(self.ready) or (self.scaling is not None and self.scaling.wakes and not self.is_hopeless)


def view_service(
    name: str, wanted: WantedService | None, replicas: Sequence[ReplicaView], scaling: ScalingView | None = None
) -> ServiceView:
    """Summarize one service; `wanted` is None for one that leaves."""
    answering = [replica for replica in replicas if replica.state.phase is Phase.READY]
    speaker = _speaker(replicas)
    reports = [replica.report for replica in answering if replica.report is not None]
    return ServiceView(
        name=name,
        served_name=wanted.served_name if wanted else name,
        phase=_phase(wanted, replicas, speaker, scaling),
        progress=_progress(speaker) if speaker and (not wanted or len(answering) < wanted.replicas) else "",
        message=_message(wanted, replicas),
        ready=len(answering),
        asked=wanted.replicas if wanted else 0,
        occupancy=_mean([report.occupancy for report in reports]),
        queue_depth=_sum([report.queue_depth for report in reports]),
        tokens_per_s=_sum([replica.tokens_per_s for replica in answering]),
        restarts=sum(replica.state.restarts for replica in replicas),
        crashes_in_a_row=max((replica.state.crashes_in_a_row for replica in replicas), default=0),
        scaling=scaling,
    )


def _speaker(replicas: Sequence[ReplicaView]) -> ReplicaView | None:
    """Return the most advanced replica that wants to become ready."""
    rising = [replica for replica in replicas if replica.is_current and replica.state.phase in _ADVANCEMENT]
    return min(rising, key=lambda replica: _ADVANCEMENT.index(replica.state.phase), default=None)


def _phase(
    wanted: WantedService | None,
    replicas: Sequence[ReplicaView],
    speaker: ReplicaView | None,
    scaling: ScalingView | None,
) -> ServicePhase:
    if wanted is None:
        return ServicePhase.DRAINING
    answering = [replica for replica in replicas if replica.state.phase is Phase.READY]
    failed = bool(wanted.refusal) or any(
        replica.is_current and replica.state.phase is Phase.FAILED for replica in replicas
    )
    if answering:
        if failed:
            return ServicePhase.DEGRADED
        if any(not replica.is_current for replica in answering):
            return ServicePhase.UPDATING
        # A service that scales up has all that it had: only a crash on the way is a lack.
        is_growing = scaling is not None and scaling.is_active and not (speaker and speaker.state.crashes_in_a_row)
        return ServicePhase.READY if is_growing or len(answering) >= wanted.replicas else ServicePhase.DEGRADED
    if wanted.refusal:
        return ServicePhase.FAILED
    if wanted.replicas == 0:
        return ServicePhase.STOPPED
    return _SERVICE_PHASES[speaker.state.phase] if speaker else ServicePhase.PENDING


def _progress(replica: ReplicaView) -> str:
    state = replica.state
    if state.phase in (Phase.RESTARTING, Phase.FAILED):
        return ""
    if state.message:
        return state.message
    return str(state.phase) if state.progress is None else f"{state.phase} {state.progress * 100:.0f} %"


def _message(wanted: WantedService | None, replicas: Sequence[ReplicaView]) -> str:
    if wanted is not None and wanted.refusal:
        return wanted.refusal
    for phase, prefix in ((Phase.FAILED, ""), (Phase.RESTARTING, "starts again soon, ")):
        for replica in replicas:
            if replica.is_current and replica.state.phase is phase:
                return f"{prefix}{replica.state.message} (log: {replica.log_path})"
    return ""


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _sum(values: Sequence[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None
