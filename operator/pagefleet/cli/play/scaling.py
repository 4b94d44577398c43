"""How many replicas a service should have here: the autoscaler's own decision over local processes. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pagefleet.api.capacity import CapacityReport
from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.autoscaler.decide import decide
from pagefleet.autoscaler.decision import Decision
from pagefleet.autoscaler.reading import UnusableReport, read_report
from pagefleet.autoscaler.service_settings import settings_of
from pagefleet.autoscaler.settings import Settings
from pagefleet.autoscaler.snapshot import Reading, Replica, ReplicaPhase, Snapshot
from pagefleet.autoscaler.state import State
from pagefleet.cli.play.replica import Phase

MACHINE_MEMORY = "machineMemory"
"""The limit that decisions name where the memory of this machine holds no more replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingTerms:
    """Say within what a service is scaled here."""

    service: InferenceService
    """With the plan of this machine in its status."""
    is_active: bool
    """Whether decisions are done, or only told."""
    most_replicas: int
    """Replicas for which there is memory, up to the user's maximum."""
    memory_note: str = ""
    """Why there are not more, in one sentence; empty where the user's maximum fits."""

    @property
    def wakes(self) -> bool:
        """Tell whether a request can find the service asleep, and wakes it."""
        spec = self.service.spec.autoscaling
        return self.is_active and spec is not None and spec.scale_to_zero is not None

    def first_replicas(self) -> int:
        """Return with how many replicas the service begins."""
        spec = self.service.spec.autoscaling
        asked = self.service.spec.replicas
        if not self.is_active or spec is None or (asked == 0 and self.wakes):
            return asked
        return min(max(asked, spec.min_replicas), self.most_replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalReplica:
    """One replica as play knows it. Times are on one clock, in seconds."""

    name: str
    phase: Phase
    created_s: float
    ready_s: float | None
    report: CapacityReport | None
    """Its latest; None when it has not answered yet, or has ended."""
    reported_s: float | None
    in_flight: int
    """Requests that the router has sent it and that are not answered yet."""


@dataclass(slots=True)
class ServiceScaling:
    """What is remembered of one service between its decisions."""

    terms: ScalingTerms
    replicas: int
    """How many there should be now."""
    state: State = field(default_factory=State)
    decision: Decision | None = None
    """The latest."""

    def adopt(self, terms: ScalingTerms) -> None:
        """Take over edited terms. The present number stays, for the next decision to bound, unless the user sets it."""
        if not (self.terms.is_active and terms.is_active):
            self.replicas = terms.first_replicas()
        self.terms = terms

    def decide(self, replicas: Iterable[LocalReplica], *, held_requests: int, time_s: float) -> None:
        """Make the next decision, and do it where the mode is Active."""
        present = tuple(replicas)
        settings = local_settings(self.terms, present)
        if settings is None:
            return
        snapshot = take_snapshot(present, settings, time_s=time_s, specified=self.replicas, held_requests=held_requests)
        decision, self.state = decide(snapshot, self.state, settings)
        self.decision = _tell_unusable(_name_limit(decision, self.terms), present, settings)
        if self.terms.is_active:
            self.replicas = decision.desired


def local_settings(terms: ScalingTerms, replicas: Iterable[LocalReplica]) -> Settings | None:
    """Return the user's settings with bounds that this machine can hold; None without `spec.autoscaling`."""
    reports = [replica.report for replica in replicas if replica.report is not None]
    settings = settings_of(terms.service, reports)
    if settings is None:
        return None
    return replace(
        settings,
        min_replicas=min(settings.min_replicas, terms.most_replicas),
        max_replicas=min(settings.max_replicas, terms.most_replicas),
    )


def take_snapshot(
    replicas: Iterable[LocalReplica], settings: Settings, *, time_s: float, specified: int, held_requests: int
) -> Snapshot:
    """Return what the autoscaler decides from."""
    return Snapshot(
        time_s=time_s,
        replicas=tuple(_replica(one, settings, time_s) for one in replicas if one.phase is not Phase.STOPPED),
        specified=specified,
        held_requests=held_requests,
    )


def _replica(one: LocalReplica, settings: Settings, time_s: float) -> Replica:
    phase = _PHASES.get(one.phase, ReplicaPhase.PENDING)
    if one.phase is Phase.STARTING and one.ready_s is not None:
        phase = ReplicaPhase.READY  # called back: it serves before anything could start
    return Replica(
        name=one.name,
        phase=phase,
        # What failed by a mistake in the file is never taken for stuck: another in its place would fail alike.
        created_s=time_s if one.phase is Phase.FAILED else one.created_s,
        ready_s=one.ready_s,
        reading=_reading(one, settings)[0],
    )


_PHASES = {
    Phase.READY: ReplicaPhase.READY,
    Phase.RETIRING: ReplicaPhase.DRAINING,
    Phase.DRAINING: ReplicaPhase.DRAINING,
}


def _reading(one: LocalReplica, settings: Settings) -> tuple[Reading | None, str]:
    """Return a replica's report with the requests that are still on their way to it, or None and what is wrong."""
    if one.report is None or one.reported_s is None:
        return None, ""
    try:
        reading = read_report(
            one.report, read_s=one.reported_s, ttft_slo_s=settings.ttft_slo_s, itl_slo_s=settings.itl_slo_s
        )
    except UnusableReport as problem:
        return None, f"{one.name}'s report: {problem}"
    if reading is None:
        return None, ""
    return replace(reading, in_flight=max(reading.in_flight, one.in_flight)), ""


def _tell_unusable(decision: Decision, replicas: Iterable[LocalReplica], settings: Settings) -> Decision:
    """Say which reports nothing could be decided from."""
    problems = tuple(problem for one in replicas if (problem := _reading(one, settings)[1]))
    if not problems:
        return decision
    return replace(
        decision,
        conditions=tuple(dict.fromkeys((*decision.conditions, "UnusableReport"))),
        notes=(*decision.notes, *problems),
    )


def _name_limit(decision: Decision, terms: ScalingTerms) -> Decision:
    """Name the machine as the limit where its memory ends before the user's maximum."""
    if decision.limited_by == "maxReplicas" and terms.memory_note:
        return replace(decision, limited_by=MACHINE_MEMORY)
    return decision
