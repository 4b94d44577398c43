"""Which replicas leave when fewer are wanted, and when: drained first, so that no request is lost.

States of a pod; the mark is an annotation with the time, so that a restarted operator carries on:

   serves ──chosen──► marked, off its Service ──settled──► asked to drain ──nothing in flight──► done ──► gone
     ▲                        │                                  │          (deadline, silence)   │
     └────────────────────────┴──called off: asked to undrain, then put back on its Service──────┘

Victims, by the order in which the ReplicaSet's controller would take them, then by ours:
 1. without a node, then pending           nothing is drained: they serve nobody, and are done at once
 2. marked before, the oldest mark first   so a drain is called off for the one that was marked last
 3. not ready                              they take no new requests
 4. fewest requests in flight, then fewest cached blocks (unknown last), then newest

A done pod gets a low `pod-deletion-cost`. Once the pod list shows it, the ReplicaSet is lowered by as many as are done,
and nothing else leaves before its controller has followed. The controller takes pods that are not ready before cheap
ones, so while one of those stays, a pod that still seems ready waits for its probe.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from pagefleet.api.labels import (
    DRAIN_ANNOTATION,
    POD_DELETION_COST_ANNOTATION,
    TRAFFIC_LABEL,
    TRAFFIC_OFF,
    TRAFFIC_ON,
)
from pagefleet.operator.plan.observed import DrainReport, PodRecord, ReplicaSetRecord

DRAINED_COST = -1000
"""`pod-deletion-cost` of a drained pod; others have 0."""
MOST_UNANSWERED = 3
"""Questions after which an engine counts as silent. Its end, SIGTERM, drains it all the same."""
PROBE_LAG_S = 15.0
"""Time after which a pod whose engine is silent is taken to stay ready: two probes, and news of them."""
RECHECK_S = 1.0
"""While replicas drain, how often time alone is looked at."""


class Question(StrEnum):
    """What an engine is asked, again and again while the plan says so."""

    LOAD = "load"
    DRAIN = "drain"
    UNDRAIN = "undrain"


class Outcome(StrEnum):
    """How a drain ended."""

    EMPTY = "empty"
    DEADLINE = "deadline"
    CALLED_OFF = "called_off"


@dataclass(frozen=True, slots=True)
class PodChange:
    """Labels and annotations to write on a pod; None removes one."""

    pod: str
    uid: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str | None]
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Departure:
    """A pod that its ReplicaSet loses by the number in the same moves."""

    pod: str
    revision: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class DrainMoves:
    """What to do about replicas that leave, or were to."""

    replicas: Mapping[str, int] = field(default_factory=dict)
    """What each revision's ReplicaSet should want at this moment."""
    changes: tuple[PodChange, ...] = ()
    questions: Mapping[str, Question] = field(default_factory=dict)
    """By pod uid."""
    departures: tuple[Departure, ...] = ()
    draining: int = 0
    in_flight: int | None = None
    """Requests of all pods that drain; None while none of them has answered."""
    left_s: float = 0.0
    """Time until the last of their deadlines, in seconds."""

    @property
    def recheck_s(self) -> float | None:
        """When time alone can bring another move, in seconds."""
        return RECHECK_S if self.draining or self.questions else None


def alive_pods(pods: tuple[PodRecord, ...]) -> tuple[PodRecord, ...]:
    """Return the pods that their ReplicaSet counts."""
    return tuple(pod for pod in pods if not pod.is_terminating and pod.phase not in ("Failed", "Succeeded"))


def without_draining(one: ReplicaSetRecord, pods: tuple[PodRecord, ...]) -> ReplicaSetRecord:
    """Return what a rollout may count on: replicas that leave answer for a while, but not for long."""
    marked = [pod for pod in alive_pods(pods) if pod.revision == one.revision and pod.drain_began]
    ready = one.ready_replicas - sum(pod.is_ready for pod in marked)
    return replace(one, ready_replicas=max(0, ready), draining=len(marked))


def decide_drains(
    wanted: Mapping[str, int],
    replica_sets: tuple[ReplicaSetRecord, ...],
    pods: tuple[PodRecord, ...],
    reports: Mapping[str, DrainReport],
    *,
    settle_s: float,
    now: datetime,
) -> DrainMoves:
    """Return the moves that bring each revision to the replicas that are wanted of it.

    `settle_s` is the time in which proxies learn that a pod left its Service.
    """
    present = {one.revision: one for one in replica_sets}
    replicas, departures = {}, []
    changes: list[PodChange] = []
    questions: dict[str, Question] = {}
    drains: list[_Drain] = []
    for revision, keep in wanted.items():
        one = present.get(revision)
        if one is None:
            replicas[revision] = keep
            continue
        mine = tuple(pod for pod in alive_pods(pods) if pod.revision == revision)
        drain = _Drain(one, keep, mine, reports, settle_s, now)
        replicas[revision], leaving = drain.lower()
        departures += leaving
        changes += drain.changes()
        questions |= drain.questions()
        drains.append(drain)
    marked = [(pod, drain) for drain in drains for pod in drain.leaving if pod.drain_began]
    counts = [report.in_flight for pod, _ in marked if (report := reports.get(pod.uid)) is not None]
    known = [count for count in counts if count is not None]
    return DrainMoves(
        replicas=replicas,
        changes=tuple(changes),
        questions=questions,
        departures=tuple(departures),
        draining=len(marked),
        in_flight=sum(known) if known else None,
        left_s=max((drain.left_s(pod) for pod, drain in marked), default=0.0),
    )


class _Drain:
    """The pods of one ReplicaSet of which `keep` stay."""

    def __init__(
        self,
        one: ReplicaSetRecord,
        keep: int,
        pods: tuple[PodRecord, ...],
        reports: Mapping[str, DrainReport],
        settle_s: float,
        now: datetime,
    ) -> None:
        self._set = one
        self._keep = keep
        self._pods = pods
        self._reports = reports
        self._settle_s = settle_s
        self._now = now
        ordered = sorted(pods, key=self._order)
        excess = max(0, len(pods) - keep)
        self.leaving = ordered[:excess]
        self._unseen = self._to_be_seen(ordered, excess)
        if self._unseen:
            # A choice between pods of which nothing is known yet: it waits for their answers.
            self.leaving = [pod for pod in self.leaving if pod.drain_began or not pod.is_ready]
        self._done = [pod for pod in self.leaving if self._end_of(pod)]
        self._is_choice = len(self._done) < len(pods)

    def lower(self) -> tuple[int, list[Departure]]:
        """Return the replicas to want at this moment, and the pods that leave by it."""
        one, present = self._set, len(self._pods)
        if self._keep >= min(one.replicas, present):
            return self._keep, []
        if present < one.replicas:
            return present, []  # pods that were never made, or are being replaced
        has_followed = one.has_settled and one.observed_replicas == one.replicas == present
        leaving = self._done
        if self._is_choice:
            leaving = [pod for pod in leaving if pod.deletion_cost <= DRAINED_COST]
        if not has_followed or not leaving or (self._is_choice and self._would_take_another(leaving)):
            return one.replicas, []
        ends = ((pod, self._end_of(pod)) for pod in leaving)
        return one.replicas - len(leaving), [Departure(pod.name, pod.revision, *end) for pod, end in ends if end]

    def changes(self) -> list[PodChange]:
        """Return what to write on pods."""
        changes = [self._mark(pod) for pod in self.leaving if self._is_choice]
        changes += [self._unmark(pod) for pod in self._pods if pod not in self.leaving]
        return [change for change in changes if change is not None]

    def questions(self) -> dict[str, Question]:
        """Return what to ask engines, by pod uid."""
        asked = {pod.uid: Question.LOAD for pod in self._unseen}
        for pod in self._pods:
            if pod.drain_began is None or not pod.is_running:
                continue
            if pod not in self.leaving:
                asked[pod.uid] = Question.UNDRAIN
            elif self._has_settled(pod):
                asked[pod.uid] = Question.DRAIN
        return asked

    def left_s(self, pod: PodRecord) -> float:
        """Return the time until a pod's deadline."""
        return max(0.0, pod.grace_s - self._elapsed_s(pod))

    def _order(self, pod: PodRecord) -> tuple[object, ...]:
        report = self._reports.get(pod.uid) or DrainReport()
        return (
            _stage(pod),
            pod.drain_began.timestamp() if pod.drain_began else math.inf,
            pod.is_ready,
            math.inf if report.in_flight is None else report.in_flight,
            math.inf if report.cached_blocks is None else report.cached_blocks,
            -pod.created.timestamp(),
            pod.name,
        )

    def _to_be_seen(self, ordered: list[PodRecord], excess: int) -> list[PodRecord]:
        """Return the pods that must be asked for their load before victims can be chosen."""
        candidates = [pod for pod in ordered if pod.is_ready and pod.drain_began is None]
        chosen = [pod for pod in ordered[:excess] if pod in candidates]
        if not chosen or len(chosen) == len(candidates):
            return []
        unseen = (pod for pod in candidates if not _was_seen(self._reports.get(pod.uid)))
        return candidates if any(True for _ in unseen) else []

    def _elapsed_s(self, pod: PodRecord) -> float:
        return max(0.0, (self._now - pod.drain_began).total_seconds()) if pod.drain_began else 0.0

    def _has_settled(self, pod: PodRecord) -> bool:
        """Tell whether proxies have forgotten a pod; one that is not ready they did not know."""
        return not pod.is_ready or self._elapsed_s(pod) >= self._settle_s

    def _end_of(self, pod: PodRecord) -> tuple[Outcome, str] | None:
        """Return how the drain of a pod that leaves ended, and the reason in words; None while it goes on."""
        if _stage(pod) < 2 or not pod.is_running:
            return Outcome.EMPTY, "it does not run"
        if pod.drain_began is None or not self._has_settled(pod):
            return None
        if self._elapsed_s(pod) >= pod.grace_s:
            return Outcome.DEADLINE, f"its requests did not end within {pod.grace_s:g} s"
        report = self._reports.get(pod.uid) or DrainReport()
        if report.is_draining and report.in_flight == 0:
            return Outcome.EMPTY, "nothing is in flight"
        if report.unanswered >= MOST_UNANSWERED:
            return Outcome.DEADLINE, "its engine does not answer /drain; SIGTERM drains it"
        return None

    def _would_take_another(self, leaving: list[PodRecord]) -> bool:
        """Tell whether the controller might take another pod: it prefers those that are not ready to those that cost
        less."""
        lags = any(self._will_not_be_ready(pod) for pod in leaving)
        return lags and any(not pod.is_ready and _stage(pod) == 2 for pod in self._pods if pod not in leaving)

    def _will_not_be_ready(self, pod: PodRecord) -> bool:
        """Tell whether a drained pod's probe has yet to be seen: an engine that drains shows it in the end, however old
        the mark is, since a drain may have been called off and resumed; of a silent one time decides."""
        report = self._reports.get(pod.uid) or DrainReport()
        is_early = self._elapsed_s(pod) < self._settle_s + PROBE_LAG_S
        return pod.is_ready and (is_early or report.is_draining is True)

    def _mark(self, pod: PodRecord) -> PodChange | None:
        began = pod.drain_began or self._now
        cost = str(DRAINED_COST) if self._end_of(pod) else None
        is_written = pod.drain_began is not None and pod.traffic == TRAFFIC_OFF
        if is_written and (cost is None or pod.deletion_cost <= DRAINED_COST):
            return None
        annotations: dict[str, str | None] = {DRAIN_ANNOTATION: began.isoformat(timespec="milliseconds")}
        if cost:
            annotations[POD_DELETION_COST_ANNOTATION] = cost
        return PodChange(pod.name, pod.uid, {TRAFFIC_LABEL: TRAFFIC_OFF}, annotations)

    def _unmark(self, pod: PodRecord) -> PodChange | None:
        """Put a pod back on its Service: one that undrained, one of an older operator, or what somebody edited."""
        if pod.drain_began is None and pod.traffic == TRAFFIC_ON and pod.deletion_cost != DRAINED_COST:
            return None
        report = self._reports.get(pod.uid) or DrainReport()
        is_silent = pod.is_ready and report.unanswered >= MOST_UNANSWERED  # so /drain has not reached it either
        if pod.drain_began and pod.is_running and report.is_draining is not False and not is_silent:
            return None
        annotations: dict[str, str | None] = {}
        if pod.drain_began:
            annotations[DRAIN_ANNOTATION] = None
        if pod.deletion_cost == DRAINED_COST:
            annotations[POD_DELETION_COST_ANNOTATION] = None
        outcome = Outcome.CALLED_OFF if pod.drain_began else None
        return PodChange(pod.name, pod.uid, {TRAFFIC_LABEL: TRAFFIC_ON}, annotations, outcome)


def _stage(pod: PodRecord) -> int:
    """Return how far a pod has come: 0 without a node, 1 pending, 2 further on. Controllers take the lowest first."""
    if pod.node is None:
        return 0
    return 1 if pod.phase == "Pending" else 2


def _was_seen(report: DrainReport | None) -> bool:
    """Tell whether an engine was asked for its load: one that does not answer holds nobody up."""
    return report is not None and (report.is_draining is not None or report.unanswered > 0)
