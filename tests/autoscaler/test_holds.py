"""What must not move a fleet: pauses, impossible limits, garbage, clocks that jump, and counters that begin again."""

import math
from dataclasses import replace

import pytest

from pagefleet.autoscaler.decision import Reason
from tests.autoscaler.snapshots import SETTINGS, Load, Run, pending

FOUR = [f"replica-{index}" for index in range(4)]


def settled(run: Run | None = None, *, seconds: float = 600.0) -> tuple[Run, Load]:
    """Return a run of four replicas that just serve their load."""
    run = run or Run(specified=4)
    load = Load(FOUR, rate_per_s=22.5)
    run.steady(load, seconds=seconds)
    assert run.specified == 4
    return run, load


def spoil(load: Load, name: str, now_s: float, **values: float) -> None:
    """Let one replica answer with these values in place of its own."""
    load.latest[name] = replace(load.latest[name], **{"read_s": now_s, **values})  # type: ignore[arg-type]


class TestSpare:
    def test_spare_replicas_are_beyond_what_the_load_asks_for(self) -> None:
        run = Run(replace(SETTINGS, spare_replicas=2), specified=4)
        decision = run.steady(Load(FOUR, rate_per_s=22.5), seconds=60)
        assert run.specified == math.ceil(max(decision.candidates.values()) - 0.1) + 2

    def test_they_are_not_added_to_themselves_by_the_guard(self) -> None:
        run = Run(replace(SETTINGS, spare_replicas=2), specified=6)
        load = Load([f"replica-{index}" for index in range(6)], rate_per_s=20.0)
        run.steady(load, seconds=300)
        before = run.specified
        for tick in range(1, 20):
            load.add(5.0)
            for counters in load.counters.values():
                counters["late_first_tokens_total"] = counters.get("late_first_tokens_total", 0) + 5
            run.tick(300 + 5.0 * tick, load.replicas(300 + 5.0 * tick))
        assert run.decisions[-1].candidates["demand"] + 2 < before + 1
        assert run.specified == before + 1


class TestRoom:
    def test_no_more_are_asked_for_than_nodes_have_room_for(self) -> None:
        run, load = settled()
        load.rate_per_s, run.specified = 60.0, 5
        now_s = 600.0
        for room, desired in (*([0, 5] for _ in range(6)), (2, 7)):
            load.add(5.0)
            now_s += 5.0
            decision = run.tick(now_s, [*load.replicas(now_s), pending("fifth", 600.0)], schedulable=room)
            assert decision.desired == desired
        assert decision.limited_by == "accelerators"
        assert decision.counterfactual == f"{decision.unlimited} without accelerators"

    def test_a_replica_without_a_node_is_not_replaced_by_another_one(self) -> None:
        run, load = settled()
        run.specified = 5
        for tick in range(1, 400):
            load.add(5.0)
            run.tick(600 + 5.0 * tick, [*load.replicas(600 + 5.0 * tick), pending("fifth", 600.0)], schedulable=0)
        assert max(decision.desired for decision in run.decisions[-400:]) == 5
        assert "StuckPending" in run.decisions[-1].conditions


class TestPauses:
    def test_a_paused_scale_up_says_what_it_would_be(self) -> None:
        run, load = settled(Run(replace(SETTINGS, may_scale_up=False), specified=4))
        load.rate_per_s = 60.0
        decision = run.steady(load, seconds=60, begin_s=600)
        assert (decision.desired, decision.reason, decision.limited_by) == (4, Reason.STEADY, "pausedScaleUp")
        assert decision.counterfactual == f"{decision.unlimited} without pausedScaleUp"
        assert decision.unlimited > 8

    def test_a_paused_scale_down_holds_after_the_window_too(self) -> None:
        run, load = settled(Run(replace(SETTINGS, may_scale_down=False), specified=4))
        load.rate_per_s = 2.0
        decision = run.steady(load, seconds=900, begin_s=600)
        assert (decision.desired, decision.limited_by) == (4, "pausedScaleDown")
        assert decision.counterfactual == "1 without pausedScaleDown"

    def test_an_idle_service_stays_while_scale_down_is_paused(self) -> None:
        run = Run(replace(SETTINGS, idle_to_zero_s=60.0, may_scale_down=False), specified=1)
        decision = run.steady(Load(["replica-0"], rate_per_s=0.0), seconds=200)
        assert (decision.desired, decision.limited_by) == (1, "pausedScaleDown")
        assert decision.counterfactual == "0 without pausedScaleDown"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"min_replicas": 30}, "minReplicas is 30, more than maxReplicas 20; write maxReplicas: 30 or more"),
        ({"kv_occupancy_target": 0.0}, "targets.kvOccupancy is 0, which is impossible; write for example"),
        ({"kv_occupancy_target": math.nan}, "targets.kvOccupancy is nan"),
        ({"queue_depth_target": 0}, "targets.queueDepth is 0"),
        ({"ttft_slo_s": -1.0}, "slo.ttft is -1"),
        ({"spare_replicas": -1}, "spareReplicas is -1"),
    ],
)
def test_impossible_limits_change_nothing_and_are_told(changes: dict[str, float], sentence: str) -> None:
    run = Run(replace(SETTINGS, **changes), specified=4)  # type: ignore[arg-type]
    decision = run.steady(Load(FOUR, rate_per_s=90.0), seconds=60)
    assert (decision.desired, decision.limited_by) == (4, "impossibleSettings")
    assert "ImpossibleSettings" in decision.conditions
    assert decision.notes[0].startswith(sentence)


@pytest.mark.parametrize(
    "values",
    [
        {"arrivals_total": -5},
        {"queue_depth": -1},
        {"arrivals_total": 10**15},
        {"queue_depth": 2**60},
        {"step_seconds_total": math.nan},
        {"queue_age_s": math.inf},
        {"blocks_active": 10**6},
        {"read_s": 10**9},
    ],
    ids=str,
)
def test_garbage_counts_as_silence_and_is_named(values: dict[str, float]) -> None:
    run, load = settled()
    for tick in range(1, 100):
        load.add(5.0)
        now_s = 600 + 5.0 * tick
        load.replicas(now_s)
        spoil(load, "replica-1", now_s, **values)
        run.tick(now_s, load.replicas(now_s, silent=FOUR))

    decision = run.decisions[-1]
    assert {each.desired for each in run.decisions} == {4}
    assert "UnusableReport" in decision.conditions
    assert "reports that no engine can have made: replica-1" in decision.notes


def test_a_counter_that_falls_and_returns_is_no_surge() -> None:
    run, load = settled(seconds=1500)
    for now_s, arrivals in ((1505.0, 20), (1510.0, None)):
        load.add(5.0)
        load.replicas(now_s)
        if arrivals is not None:
            spoil(load, "replica-1", now_s, arrivals_total=arrivals)
        run.tick(now_s, load.replicas(now_s, silent=FOUR if arrivals is not None else ()))
    assert run.specified == 4


@pytest.mark.parametrize("jump_s", [-1000.0, -300.0, 600.0, 86_400.0])
def test_a_clock_that_jumps_holds_and_then_goes_on(jump_s: float) -> None:
    run, load = settled(Run(replace(SETTINGS, idle_to_zero_s=300.0), specified=4), seconds=1500)
    load.add(5.0)
    at_jump = run.tick(1505 + jump_s, load.replicas(1505 + jump_s))
    assert (at_jump.desired, at_jump.limited_by) == (4, "clockJump")
    assert "ClockJump" in at_jump.conditions

    quiet = Run(run.settings, specified=4)
    quiet.state = run.state
    load.rate_per_s = 0.0
    quiet.steady(load, seconds=200, begin_s=1505 + jump_s)
    assert quiet.specified == 4, "neither idle nor out of its window because of the jump"

    load.rate_per_s = 60.0
    run.steady(load, seconds=60, begin_s=1505 + jump_s)
    assert run.specified > 6, "more is still added"


def test_a_clock_ahead_of_the_clusters_does_not_take_new_pods_for_stuck() -> None:
    run, load = settled()
    load.rate_per_s = 30.0
    for tick in range(1, 25):
        load.add(5.0)
        new = [pending(f"new-{index}", -7200.0) for index in range(run.specified - 4)]
        run.tick(600 + 5.0 * tick, (*load.replicas(600 + 5.0 * tick), *new))
    assert "StuckPending" not in run.decisions[-1].conditions
    assert run.specified <= 8


def test_a_pod_that_is_ready_again_after_days_is_no_start() -> None:
    run, load = settled()
    replicas = load.replicas(605.0)
    run.tick(605.0, replicas[1:])
    run.tick(610.0, (replace(replicas[0], created_s=-300_000.0, ready_s=609.0), *replicas[1:]))
    assert run.decisions[-1].lead_time_s == pytest.approx(120.0)


def test_silence_without_a_known_speed_changes_nothing() -> None:
    run = Run(replace(SETTINGS, speed=None), specified=4)
    load = Load(FOUR, rate_per_s=22.5)
    for tick in range(1, 200):
        now_s = 5.0 * tick
        decision = run.tick(now_s, (*load.replicas(now_s, never=True), pending("stuck", 0.0)))
    assert (decision.desired, decision.limited_by) == (4, "signalMissing")
