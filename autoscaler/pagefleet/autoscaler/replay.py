"""Decide again what a log recorded, under other settings. Pure.

The snapshots stay those of the recorded fleet: what other numbers would have changed in its queues is not known.
The number of replicas from which a decision goes on is the replay's own, unless somebody else had set the recorded one.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from pagefleet.autoscaler.decide import decide
from pagefleet.autoscaler.decision import Decision
from pagefleet.autoscaler.decision_record import Record
from pagefleet.autoscaler.settings import Settings
from pagefleet.autoscaler.snapshot import Snapshot
from pagefleet.autoscaler.state import State
from pagefleet.autoscaler.trust import MOST_GAP_S


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """One moment of one service: what was decided, and what would have been."""

    namespace: str
    service: str
    time_s: float
    recorded: Decision
    replayed: Decision

    @property
    def differs(self) -> bool:
        """Tell whether the number, its reason or its limit is another."""
        return _told(self.recorded) != _told(self.replayed)


def _told(decision: Decision) -> tuple[int, str, str | None]:
    return decision.desired, decision.reason, decision.limited_by


@dataclass(slots=True)
class _Service:
    """What is remembered of one service between its records."""

    state: State
    before: Record | None = None
    desired: int | None = None


def replay(records: Iterable[Record], change: Callable[[Settings], Settings]) -> Iterator[Replayed]:
    """Yield each recorded decision beside the one under changed settings."""
    services: dict[str, _Service] = {}
    for record in records:
        service = services.setdefault(record.uid, _Service(record.state or State()))
        if record.state is not None and not _goes_on(service.state, record.state):
            service.state = record.state  # the autoscaler had begun again, and so does the replay
        settings = change(record.settings)
        if service.before is not None:
            for snapshot in record.skipped_snapshots(service.before.snapshot):
                decision = _decide(service, snapshot, settings)
                yield _replayed(record, snapshot.time_s, service.before.decision, decision)
        decision = _decide(service, record.snapshot, settings)
        service.before = record
        yield _replayed(record, record.snapshot.time_s, record.decision, decision)


def _goes_on(state: State, recorded: State) -> bool:
    return bool(state.totals and recorded.totals) and state.totals[-1].time_s == recorded.totals[-1].time_s


def _decide(service: _Service, snapshot: Snapshot, settings: Settings) -> Decision:
    before = service.before
    if service.desired is not None and before is not None and snapshot.specified == before.decision.desired:
        snapshot = replace(snapshot, specified=service.desired)
    decision, service.state = decide(snapshot, service.state, settings)
    service.desired = decision.desired
    return decision


def _replayed(record: Record, time_s: float, recorded: Decision, replayed: Decision) -> Replayed:
    return Replayed(
        namespace=record.namespace, service=record.service, time_s=time_s, recorded=recorded, replayed=replayed
    )


@dataclass(slots=True, kw_only=True)
class Totals:
    """One service's decisions, summed up."""

    decisions: int = 0
    differing: int = 0
    recorded_hours: float = 0.0
    """Replica-hours of the numbers that were decided."""
    replayed_hours: float = 0.0
    recorded_most: int = 0
    replayed_most: int = 0
    differences: list[tuple[float, Replayed]] = field(default_factory=list)
    """(end, first decision) of each stretch over which the same two outcomes differ."""
    _last: Replayed | None = None

    def add(self, moment: Replayed) -> None:
        """Take the next decision."""
        last, self._last = self._last, moment
        if last is not None and 0 < moment.time_s - last.time_s <= MOST_GAP_S:  # nobody decided in a longer gap
            hours = (moment.time_s - last.time_s) / 3600
            self.recorded_hours += hours * last.recorded.desired
            self.replayed_hours += hours * last.replayed.desired
        self.decisions += 1
        self.recorded_most = max(self.recorded_most, moment.recorded.desired)
        self.replayed_most = max(self.replayed_most, moment.replayed.desired)
        if not moment.differs:
            return
        self.differing += 1
        is_same = last is not None and last.differs and _both(last) == _both(moment)
        if is_same:
            self.differences[-1] = (moment.time_s, self.differences[-1][1])
        else:
            self.differences.append((moment.time_s, moment))


def _both(moment: Replayed) -> tuple[tuple[int, str, str | None], tuple[int, str, str | None]]:
    return _told(moment.recorded), _told(moment.replayed)


def summarize(moments: Iterable[Replayed]) -> dict[str, Totals]:
    """Return the totals of each service, by `namespace/name`."""
    totals: dict[str, Totals] = {}
    for moment in moments:
        totals.setdefault(f"{moment.namespace}/{moment.service}", Totals()).add(moment)
    return totals
