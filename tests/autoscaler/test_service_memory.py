"""`pagefleet.autoscaler.service_memory` and `explain`: what one tick of one service says and remembers."""

from typing import Any

import pytest

from pagefleet.api.v1alpha1 import DECISIONS_KEPT
from pagefleet.autoscaler.decision import Decision, Reason
from pagefleet.autoscaler.explain import (
    CONDITION_SENTENCES,
    is_urgent,
    is_worth_writing,
    make_signals,
    remember_decision,
    tell_conditions,
    tell_decision,
)
from pagefleet.autoscaler.records import ServiceRecord, read_service
from pagefleet.autoscaler.service_memory import ServiceMemory, Step
from pagefleet.autoscaler.settings import Settings
from pagefleet.autoscaler.snapshot import Snapshot
from pagefleet.autoscaler.state import State
from tests.autoscaler.cluster_objects import service_object
from tests.autoscaler.snapshots import SETTINGS, TICK_S, Load, reading, ready

ACTIVE = {"mode": "Active", "maxReplicas": 8, "slo": {"ttft": "2s", "itl": "100ms"}}
PLAN = {
    "blockSize": 16,
    "maxNumSeqs": 256,
    "maxNumBatchedTokens": 2048,
    "predicted": {"kvTokens": 410_000},
    "stepTime": {
        "baseSeconds": 0.018,
        "prefillTokenSeconds": 79e-6,
        "kvTokenSeconds": 35e-9,
        "sequenceSeconds": 20e-6,
    },
}


def record(replicas: int, *, autoscaling: dict[str, Any] = ACTIVE, **status: Any) -> ServiceRecord:
    return read_service(
        service_object(replicas=replicas, autoscaling=autoscaling, status={"plan": PLAN, **status}, writer=None)
    )


def run(memory: ServiceMemory, service: ServiceRecord, *, seconds: float, rate_per_s: float, names: str = "a") -> Step:
    """Let a service have a load for a while without any write, and return the last tick."""
    load, now_s = Load(names, rate_per_s=rate_per_s), 0.0
    while now_s < seconds:
        load.add(TICK_S)
        now_s += TICK_S
        step = memory.step(service, load.replicas(now_s), [], now_s=now_s, hold=None)
        if step.is_to_scale:
            memory.not_scaled(step)
    return step


def test_a_change_that_could_not_be_written_is_wanted_again() -> None:
    service = record(1)
    memory = ServiceMemory(service)
    step = run(memory, service, seconds=60, rate_per_s=40.0)
    assert step.is_to_scale
    assert step.decision is not None
    assert step.decision.desired == 3
    assert memory.state.scaled_up_s == float("-inf")
    assert (memory.state.was_up, memory.state.reversals_s) == (None, ())
    memory.scaled(step)
    assert memory.last_decisions[0].to_replicas == 3
    assert memory.last_decisions[0].message == memory.status(step).message


@pytest.mark.parametrize("mode", ["Recommend", "Off"])
def test_other_modes_scale_nothing_and_still_tell_what_is_seen(mode: str) -> None:
    service = record(1, autoscaling=ACTIVE | {"mode": mode})
    memory = ServiceMemory(service)
    step = run(memory, service, seconds=60, rate_per_s=40.0)
    assert not step.is_to_scale
    status = memory.status(step)
    assert status.mode == mode
    assert status.signals is not None
    assert status.signals.reporting_replicas == 1
    assert (status.desired is None) == (mode == "Off")
    assert memory.state.scaled_up_s == float("-inf")


def test_while_revisions_change_nothing_is_taken_away() -> None:
    for revisions, limited_by in (
        ({"current": "a", "updated": "b"}, "rollout"),
        ({"current": "b", "updated": "b"}, None),
    ):
        service = record(8, revisions=revisions)
        memory = ServiceMemory(service)
        step = run(memory, service, seconds=600, rate_per_s=1.0, names="abcdefgh")
        assert step.decision is not None
        assert step.decision.limited_by in (limited_by, "consolidation", "downInterval")
        assert step.is_to_scale == (limited_by is None)


def test_a_hold_is_named() -> None:
    service = record(1)
    memory = ServiceMemory(service)
    run(memory, service, seconds=60, rate_per_s=40.0)
    load = Load("a", rate_per_s=40.0)
    load.counters["a"] = dict.fromkeys(("arrivals_total",), 1000000.0)
    step = memory.step(service, load.replicas(65.0), [], now_s=65.0, hold="apiServer")
    assert step.decision is not None
    assert (step.decision.desired, step.decision.limited_by) == (1, "apiServer")
    assert "the API server does not answer" in (memory.status(step).message or "")


def test_a_decision_that_raises_is_told_and_changes_nothing() -> None:
    def fail(snapshot: Snapshot, state: State, settings: Settings) -> tuple[Decision, State]:
        raise ZeroDivisionError("float division by zero")

    service = record(3)
    memory = ServiceMemory(service, decide=fail)
    step = memory.step(service, (), [], now_s=5.0, hold=None)
    assert not step.is_to_scale
    assert memory.status(step).message == "no decision could be made: ZeroDivisionError: float division by zero"
    assert memory.state == State()


def test_new_objectives_do_not_make_old_answers_late() -> None:
    memory = ServiceMemory(record(2))
    strict = record(2, autoscaling=ACTIVE | {"slo": {"ttft": "1s"}})
    for now_s, late, service in ((5.0, 0, record(2)), (10.0, 0, record(2)), (15.0, 500, strict)):
        report = reading(now_s, first_tokens_total=1000, late_first_tokens_total=late, finished_total=1000)
        step = memory.step(service, (ready("a", report), ready("b", report)), [], now_s=now_s, hold=None)
    assert step.state.totals[-1].late_first_tokens == 0


def test_the_ring_survives_a_restart_and_is_bounded() -> None:
    service = record(1)
    memory = ServiceMemory(service)
    step = run(memory, service, seconds=60, rate_per_s=40.0)
    for _ in range(DECISIONS_KEPT + 3):
        memory.scaled(step)
    status = memory.status(step)
    assert len(status.last_decisions) == DECISIONS_KEPT
    assert ServiceMemory(service).last_decisions == ()
    found = service_object(autoscaling=ACTIVE, status={"autoscaling": status.to_manifest()})
    assert ServiceMemory(read_service(found)).last_decisions == status.last_decisions


# ---- explain ----

SNAPSHOT = Snapshot(
    time_s=1000.0,
    replicas=(
        ready("a", reading(998.0, blocks_active=12_800, queue_depth=3, running=7, tokens_queued=900, queue_age_s=1.5)),
        ready("b", None),
    ),
    specified=2,
)


def decision(reason: Reason, **more: Any) -> Decision:
    values = {"desired": 3, "current": 2, "unlimited": 3, "forecast_per_s": 41.26, "service_rate_per_s": 14.9}
    return Decision(**{**values, "reason": reason, "lead_time_s": 140.0, **more})


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (Reason.DEMAND, "2 to 3 replicas: 41 requests/s to be ready for in 140 s, of which one replica serves 15"),
        (Reason.BACKLOG, "2 to 3 replicas: 3 requests wait, to be worked off in 60 s"),
        (Reason.KV_OCCUPANCY, "2 to 3 replicas: live sequences hold 50 % of the KV cache, targets.kvOccupancy is 0.8"),
        (Reason.QUEUE_DEPTH, "2 to 3 replicas: 3 requests wait in 1 replica, targets.queueDepth is 4"),
        (Reason.GUARD, "2 to 3 replicas: sequences lose their blocks although the load is within bounds"),
        (Reason.BOUNDS, "2 to 3 replicas: minReplicas is 1, maxReplicas 20"),
        (Reason.WAKE_UP, "2 to 3 replicas: there was none"),
    ],
)
def test_each_reason_has_a_sentence_with_its_numbers(reason: Reason, told: str) -> None:
    assert tell_decision(decision(reason), SNAPSHOT, State(), SETTINGS) == told


def test_every_reason_has_a_sentence() -> None:
    for reason in Reason:
        assert ": " in tell_decision(decision(reason), SNAPSHOT, State(), Settings(speed=None))


def test_limit_and_notes_follow() -> None:
    held = decision(Reason.DEMAND, limited_by="maxReplicas", notes=("b is 5 % of the load",))
    told = tell_decision(held, SNAPSHOT, State(), SETTINGS)
    assert told.endswith("; maxReplicas is 20; b is 5 % of the load")
    assert tell_decision(decision(Reason.STEADY, desired=2), SNAPSHOT, State(), SETTINGS).startswith("2 replicas: ")
    unknown = decision(Reason.STEADY, desired=1, current=1, forecast_per_s=None)
    assert tell_decision(unknown, SNAPSHOT, State(), SETTINGS) == "1 replica: nothing is known of the load"


def test_signals_count_who_reports_and_who_is_silent() -> None:
    signals = make_signals(SNAPSHOT, State(), SETTINGS)
    assert (signals.reporting_replicas, signals.silent_replicas, signals.age_seconds) == (1, 1, 2.0)
    assert (signals.kv_percent, signals.queue_depth, signals.running, signals.queued_tokens) == (50, 3, 7, 900)
    assert signals.requests_per_second is signals.missed_percent is None
    nothing = make_signals(Snapshot(time_s=1000.0, replicas=(ready("a", None),), specified=1), State(), SETTINGS)
    assert (nothing.reporting_replicas, nothing.silent_replicas) == (0, 1)
    assert nothing.kv_percent is nothing.queue_depth is nothing.running is nothing.age_seconds is None


def test_age_alone_is_not_worth_a_write_and_a_decision_is_urgent() -> None:
    service = record(1)
    memory = ServiceMemory(service)
    report = (ready("a", reading(5.0)),)
    first = memory.step(service, report, [], now_s=5.0, hold=None)
    later = memory.step(service, report, [], now_s=9.0, hold=None)
    before = memory.status(first).model_copy(update={"signals": make_signals(later.snapshot, later.state, SETTINGS)})
    aged = before.signals.model_copy(update={"age_seconds": 11.0}) if before.signals else None
    assert not is_worth_writing(before, before.model_copy(update={"signals": aged}))
    assert is_worth_writing(before, before.model_copy(update={"reason": "Other"}))
    assert is_worth_writing(None, before)
    assert not is_urgent(before, "Active", first.decision)
    assert is_urgent(before, "Conflict", first.decision)
    assert is_urgent(before, "Active", decision(Reason.DEMAND))


def test_a_condition_is_told_once_with_a_sentence() -> None:
    assert [one.reason for one in tell_conditions(("Flapping",), ("Flapping", "StuckPending"))] == ["StuckPending"]
    assert all(one.is_warning and one.message for one in tell_conditions((), CONDITION_SENTENCES))
    kept = remember_decision((), decision(Reason.DEMAND), SNAPSHOT, "words")
    assert (kept[0].from_replicas, kept[0].to_replicas, kept[0].message) == (2, 3, "words")
