"""What is remembered of one service from tick to tick, and one tick of it: settings, decision, status. No I/O."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pagefleet.api.capacity import CapacityReport
from pagefleet.api.v1alpha1 import AutoscalingMode, AutoscalingStatus, ScalingDecision
from pagefleet.autoscaler import ownership
from pagefleet.autoscaler.decide import decide
from pagefleet.autoscaler.decision import Decision, Reason
from pagefleet.autoscaler.explain import make_status, remember_decision, tell_decision
from pagefleet.autoscaler.ownership import Ownership
from pagefleet.autoscaler.records import ServiceRecord
from pagefleet.autoscaler.service_settings import settings_of
from pagefleet.autoscaler.settings import Settings
from pagefleet.autoscaler.snapshot import Reading, Replica, Snapshot
from pagefleet.autoscaler.state import State

CONFLICT = "Conflict"
UNSET = Settings(speed=None)
"""For what is only looked at."""

Decide = Callable[[Snapshot, State, Settings], tuple[Decision, State]]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One tick of one service."""

    record: ServiceRecord
    mode: str
    snapshot: Snapshot
    settings: Settings
    state_before: State
    state: State
    decision: Decision | None
    """None in mode Off, or where none could be made."""
    conflict: str | None = None
    fault: str | None = None

    @property
    def is_to_scale(self) -> bool:
        """Tell whether the number is to be set."""
        decision = self.decision
        return self.mode == AutoscalingMode.ACTIVE and decision is not None and decision.desired != decision.current


class ServiceMemory:
    """What one process knows of one service beside its record."""

    def __init__(self, record: ServiceRecord, *, decide: Decide = decide) -> None:
        status = record.service.status.autoscaling
        self._decide = decide
        self.state = State()
        self.ownership: Ownership | None = None
        self.settings: Settings | None = None
        self._source: tuple[object, object, list[object]] | None = None
        self.last_decisions: tuple[ScalingDecision, ...] = () if status is None else status.last_decisions
        self.written: AutoscalingStatus | None = status
        """The status as it was last written or found."""
        self.written_s = float("-inf")
        self.told: dict[str, float] = {}
        """When each condition was last an event."""
        self.conditions: tuple[str, ...] = () if status is None else status.conditions

    def step(
        self,
        record: ServiceRecord,
        replicas: tuple[Replica, ...],
        reports: list[CapacityReport],
        *,
        now_s: float,
        hold: str | None,
        schedulable: int | None = None,
    ) -> Step:
        """Decide once; `hold` names what forbids any change, if anything does, `schedulable` as in `Snapshot`."""
        spec = record.service.spec.autoscaling
        settings = self._settings_of(record, reports)
        mode = str(AutoscalingMode.OFF if spec is None else spec.mode)
        self.ownership = ownership.look(self.ownership, record, is_active=mode == AutoscalingMode.ACTIVE)
        foreign = self.ownership.foreign
        conflict = None if foreign is None else foreign.sentence(self.ownership.expected)
        mode = mode if foreign is None else CONFLICT
        specified = record.service.spec.replicas
        snapshot = Snapshot(time_s=now_s, replicas=replicas, specified=specified, schedulable=schedulable)
        before = _with_objectives(self.state, self.settings, settings, replicas)
        self.settings = settings
        decision, after, fault = None, before, None
        if mode != AutoscalingMode.OFF:
            try:
                decision, after = self._decide(snapshot, before, settings)
            except Exception as error:  # one service's numbers must not stop the others
                fault = f"no decision could be made: {type(error).__name__}: {error}"
        if decision is not None:
            decision, after = _held(decision, before, after, hold or _rollout(record, decision))
            if mode != AutoscalingMode.ACTIVE:
                after = as_if_unchanged(before, after)
        self.state = after
        return Step(
            record=record,
            mode=mode,
            snapshot=snapshot,
            settings=settings,
            state_before=before,
            state=after,
            decision=decision,
            conflict=conflict,
            fault=fault,
        )

    def _settings_of(self, record: ServiceRecord, reports: list[CapacityReport]) -> Settings:
        """Return the settings, which stay the same object while nothing that they are made from changes."""
        source: tuple[object, object, list[object]] = (
            record.service.spec,
            record.service.status.plan,
            [(one.blocks_total, one.block_size, one.max_num_seqs, one.startup_stage_seconds) for one in reports],
        )
        if self.settings is None or not _is_same(source, self._source):
            found = settings_of(record.service, reports) or UNSET
            self._source = source
            return self.settings if self.settings == found else found
        return self.settings

    def scaled(self, step: Step) -> None:
        """Take note that the number was set."""
        if step.decision is None:
            return
        self.ownership = Ownership(expected=step.decision.desired, is_claimed=True)
        message = tell_decision(step.decision, step.snapshot, step.state, step.settings)
        self.last_decisions = remember_decision(self.last_decisions, step.decision, step.snapshot, message)

    def not_scaled(self, step: Step) -> None:
        """Take note that the number could not be set: the next decision must not believe that it was."""
        self.state = as_if_unchanged(step.state_before, self.state)

    def status(self, step: Step, *, fault: str | None = None) -> AutoscalingStatus:
        """Return what the status should be."""
        return make_status(
            mode=step.mode,
            decision=step.decision,
            snapshot=step.snapshot,
            state=step.state,
            settings=step.settings,
            last_decisions=self.last_decisions,
            conflict=step.conflict,
            fault=fault or step.fault,
        )


def as_if_unchanged(before: State, after: State) -> State:
    """Return a state that has learned what was seen, and does not remember a change that was not made."""
    return replace(
        after,
        scaled_up_s=before.scaled_up_s,
        scaled_down_s=before.scaled_down_s,
        guarded_s=before.guarded_s,
        guarded_share=before.guarded_share,
        guards_in_vain=before.guards_in_vain,
        reversals_s=before.reversals_s,
        was_up=before.was_up,
    )


def _held(decision: Decision, before: State, after: State, hold: str | None) -> tuple[Decision, State]:
    if hold is None or decision.desired == decision.current:
        return decision, after
    held = replace(decision, desired=decision.current, reason=Reason.STEADY, limited_by=hold)
    return held, as_if_unchanged(before, after)


def _rollout(record: ServiceRecord, decision: Decision) -> str | None:
    """Return why replicas may not be taken away: while revisions change, what is surplus is the operator's."""
    revisions = record.service.status.revisions
    is_changing = None not in (revisions.current, revisions.updated) and revisions.current != revisions.updated
    return "rollout" if is_changing and decision.desired < decision.current else None


def _with_objectives(state: State, before: Settings | None, now: Settings, replicas: tuple[Replica, ...]) -> State:
    """Return the state for changed objectives: what was late by the old ones has not become late by the new ones."""
    if before is None or (before.ttft_slo_s, before.itl_slo_s) == (now.ttft_slo_s, now.itl_slo_s):
        return state
    latest = {replica.name: replica.reading for replica in replicas if replica.reading is not None}
    return replace(
        state, readings={name: _missed_as(reading, latest.get(name)) for name, reading in state.readings.items()}
    )


def _missed_as(reading: Reading, latest: Reading | None) -> Reading:
    if latest is None:
        return reading
    return replace(
        reading,
        late_first_tokens_total=latest.late_first_tokens_total,
        slow_answers_total=latest.slow_answers_total,
    )


def _is_same(one: tuple[object, object, list[object]], other: tuple[object, object, list[object]] | None) -> bool:
    return other is not None and one[0] is other[0] and one[1] is other[1] and one[2] == other[2]
