"""The decision, signal by signal: what it asks for, what holds it back, and what it says."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from pagefleet.autoscaler.decision import Reason
from pagefleet.autoscaler.snapshot import Snapshot
from tests.autoscaler.snapshots import SETTINGS, Load, Run, pending, reading, ready

HOUR_S = 3600.0


def names(count: int) -> list[str]:
    return [f"replica-{index}" for index in range(count)]


def test_steady_load_gives_one_number_and_no_flaps() -> None:
    run = Run(specified=4)
    load = Load(names(4), rate_per_s=22.5)
    decision = run.steady(load, seconds=HOUR_S)

    assert decision.desired == 4
    assert decision.reason is Reason.STEADY
    assert {each.desired for each in run.decisions} == {4}


def test_a_growing_rate_is_met_before_it_is_there() -> None:
    run = Run(specified=4)
    load = Load(names(4), rate_per_s=22.5)
    run.steady(load, seconds=600)
    load.rate_per_s = 45.0
    run.steady(load, seconds=40, begin_s=600)

    assert run.specified >= 6
    first = next(each for each in run.decisions if each.desired > 4)
    assert first.reason in (Reason.DEMAND, Reason.BACKLOG)
    assert first.forecast_per_s is not None
    assert first.service_rate_per_s is not None
    assert first.candidates["demand"] == pytest.approx(
        first.forecast_per_s / first.service_rate_per_s / SETTINGS.load_share
    )


def test_replicas_on_their_way_are_counted_once() -> None:
    run = Run(specified=2)
    load = Load(names(2), rate_per_s=40.0)
    for tick in range(1, 25):
        load.add(5.0)
        waiting = [pending(f"new-{index}", 5.0) for index in range(run.specified - 2)]
        run.tick(5.0 * tick, (*load.replicas(5.0 * tick), *waiting))

    needed = max(run.decisions[-1].candidates.values())
    assert needed - 1 < run.specified <= needed + 1, "the same lack is not ordered again at every tick"


def test_a_stuck_replica_is_replaced_named_and_blocks_nothing() -> None:
    run = Run(specified=5)
    load = Load(names(4), rate_per_s=22.5)
    for tick in range(1, 400):
        load.add(5.0)
        run.tick(5.0 * tick, (*load.replicas(5.0 * tick), pending("stuck", 0.0)))
        if tick == 200:
            load.rate_per_s = 6.0

    by_time = {5.0 * (index + 1): each for index, each in enumerate(run.decisions)}
    assert "StuckPending" not in by_time[200.0].conditions
    assert "StuckPending" in by_time[400.0].conditions
    assert run.specified < 5, "less demand still takes replicas away"


@pytest.mark.parametrize("never", [True, False])
def test_silence_takes_nothing_away(never: bool) -> None:
    run = Run(specified=4)
    load = Load(names(4), rate_per_s=22.5)
    run.steady(load, seconds=900)
    for tick in range(1, 200):
        run.tick(900 + 5.0 * tick, load.replicas(900 + 5.0 * tick, silent=names(4), never=never))

    assert run.specified == 4
    assert run.decisions[-1].limited_by == "signalMissing"
    assert "SignalMissing" in run.decisions[-1].conditions


def test_a_report_that_returns_holds_what_was_missed() -> None:
    run = Run(specified=4)
    load = Load(names(4), rate_per_s=22.5)
    run.steady(load, seconds=900)
    for tick in range(1, 5):
        load.add(5.0)
        run.tick(900 + 5.0 * tick, load.replicas(900 + 5.0 * tick, silent=["replica-0"]))
    load.add(5.0)
    decision = run.tick(925.0, load.replicas(925.0))

    assert run.state.totals[-1].arrivals == pytest.approx(22.5 * (925 - 5))
    assert decision.desired == 4


def test_a_report_that_returns_after_long_is_no_surge() -> None:
    run = Run(specified=4)
    load = Load(names(4), rate_per_s=22.5)
    run.steady(load, seconds=600)
    for tick in range(1, 41):
        load.add(5.0)
        run.tick(600 + 5.0 * tick, load.replicas(600 + 5.0 * tick, silent=["replica-0"]))
    assert run.state.rates[-1].short == pytest.approx(22.5, rel=0.01), "the silent one gets as much as the others"
    run.steady(load, seconds=60, begin_s=800)

    assert max(rates.short for rates in run.state.rates) == pytest.approx(22.5, rel=0.35)
    assert run.state.rates[-1].long == pytest.approx(22.5, rel=0.01)
    assert {each.desired for each in run.decisions} == {4}


def test_a_restart_of_an_engine_is_no_negative_rate() -> None:
    run = Run(specified=4)
    load = Load(names(4), rate_per_s=22.5)
    run.steady(load, seconds=600)
    before = run.state.totals[-1].arrivals
    load.counters["replica-1"] = {}
    run.steady(load, seconds=5, begin_s=600)

    assert run.state.totals[-1].arrivals == pytest.approx(before + 22.5 * 5)
    assert run.specified == 4


def test_what_engines_did_before_the_first_decision_is_no_demand() -> None:
    run = Run(specified=4)
    load = Load(names(4), rate_per_s=22.5)
    load.add(24 * HOUR_S)
    run.tick(5.0, load.replicas(5.0, never=True))
    load.add(5.0)
    run.tick(10.0, load.replicas(10.0))
    load.add(5.0)
    decision = run.tick(15.0, load.replicas(15.0))

    assert decision.desired == 4
    assert run.state.rates[-1].short < 23


def test_a_clock_that_jumps_back_changes_nothing() -> None:
    run = Run(specified=4)
    load = Load(names(4), rate_per_s=22.5)
    run.steady(load, seconds=600)
    decision = run.tick(100.0, load.replicas(100.0))

    assert decision.desired == 4


def test_less_demand_waits_for_the_window_and_goes_in_small_steps() -> None:
    run = Run(specified=16)
    load = Load(names(16), rate_per_s=80.0)
    run.steady(load, seconds=900)
    before = run.specified
    load.rate_per_s = 20.0
    run.steady(load, seconds=HOUR_S, begin_s=900)

    downs = [
        (5.0 * index, each.current - each.desired)
        for index, each in enumerate(run.decisions)
        if each.desired < each.current and index > 181
    ]
    assert downs[0][0] - 900 >= 2 * SETTINGS.lead_time_s
    assert all(later[0] - earlier[0] >= SETTINGS.down_interval_s for earlier, later in pairwise(downs))
    assert max(step for _, step in downs) <= before * SETTINGS.down_share
    assert run.specified == 3


@pytest.mark.parametrize(("demand", "desired", "limited_by"), [(3.95, 5, "fallMargin"), (3.6, 4, None)])
def test_a_replica_stays_until_fewer_carry_the_load_with_room(
    demand: float, desired: int, limited_by: str | None
) -> None:
    """Else the next wave of the same load would bring it back."""
    probe = Run(specified=5)
    asked = probe.steady(Load(names(5), rate_per_s=20.0), seconds=600).candidates["demand"]
    run = Run(specified=5)
    decision = run.steady(Load(names(5), rate_per_s=20.0 * demand / asked), seconds=HOUR_S)

    assert decision.candidates["demand"] == pytest.approx(demand, abs=0.1)
    assert decision.unlimited == 4
    assert decision.desired == desired
    assert decision.limited_by == limited_by


def test_a_hot_replica_is_named() -> None:
    run = Run(specified=2)
    for tick in range(1, 10):
        now_s = 5.0 * tick
        run.tick(now_s, (ready("hot", reading(now_s, in_flight=90)), ready("cold", reading(now_s, in_flight=10))))

    assert "Imbalanced" in run.decisions[-1].conditions


def test_prompts_saturate_without_a_full_cache() -> None:
    """An occupancy of 20 % says nothing when long prompts keep the engine busy."""
    run = Run(specified=2)
    load = Load(names(2), rate_per_s=6.0, blocks_active=5000)
    for counters in load.counters.values():
        counters["prompt_tokens_total"] = 0.0
    for tick in range(1, 100):
        load.add(5.0)
        for counters in load.counters.values():
            counters["prompt_tokens_total"] += 6000 * 15.0
        run.tick(5.0 * tick, load.replicas(5.0 * tick))

    assert run.specified > 2
    assert run.decisions[-1].candidates["kvOccupancy"] < 1


def test_a_queue_is_worked_off_and_not_multiplied() -> None:
    run = Run(specified=4)
    load = Load(names(4), rate_per_s=22.5)
    run.steady(load, seconds=600)
    load.gauges = {"queue_depth": 120, "queue_age_s": 9.0, "in_flight": 150}
    run.steady(load, seconds=10, begin_s=600)

    assert run.decisions[-2].reason in (Reason.BACKLOG, Reason.QUEUE_DEPTH)
    assert 4 < run.specified <= 8, "480 waiting requests over a target of 4 would be 120 replicas"


def test_the_users_occupancy_is_kept() -> None:
    run = Run(replace(SETTINGS, kv_occupancy_target=0.2), specified=2)
    load = Load(names(2), rate_per_s=2.0, blocks_active=12_000)
    decision = run.steady(load, seconds=60)

    assert run.specified == 5
    assert max(decision.candidates, key=lambda name: decision.candidates[name]) == "kvOccupancy"


def run_late(run: Run, load: Load, ticks: int) -> None:
    """Play ten minutes of steady load, and then ticks in which five first tokens of each replica are late."""
    run.steady(load, seconds=600)
    for tick in range(1, ticks):
        load.add(5.0)
        for counters in load.counters.values():
            counters["late_first_tokens_total"] = counters.get("late_first_tokens_total", 0) + 5
        run.tick(600 + 5.0 * tick, load.replicas(600 + 5.0 * tick))


def test_late_first_tokens_add_one_replica_and_then_wait() -> None:
    run = Run(specified=4)
    run_late(run, Load(names(4), rate_per_s=24.0), ticks=20)

    ups = [each for each in run.decisions if each.desired > each.current]
    assert [each.reason for each in ups] == [Reason.GUARD]
    assert run.specified == 5


def test_requests_that_no_number_serves_in_time_are_not_bought_with_ever_more_replicas() -> None:
    run = Run(specified=8)
    run_late(run, Load(names(8), rate_per_s=24.0), ticks=240)

    demand = run.decisions[100].candidates["demand"]
    assert run.decisions[100].conditions == ()
    assert max(each.unlimited for each in run.decisions[121:]) <= math.ceil(1.6 * demand + 1)
    assert run.decisions[-1].candidates["demand"] == pytest.approx(1.6 * demand, rel=0.02), "the corrector's bound"
    assert "SloMissed" in run.decisions[-1].conditions


def test_bounds_win_and_are_named() -> None:
    run = Run(replace(SETTINGS, max_replicas=3), specified=3)
    decision = run.steady(Load(names(3), rate_per_s=60.0), seconds=120)
    assert (decision.desired, decision.limited_by) == (3, "maxReplicas")
    assert decision.unlimited > 6

    run = Run(replace(SETTINGS, min_replicas=5), specified=2)
    decision = run.tick(5.0, Load(names(2), rate_per_s=0.0).replicas(5.0))
    assert (decision.desired, decision.reason, decision.limited_by) == (5, Reason.BOUNDS, "minReplicas")


def test_an_objective_that_no_request_can_meet_is_named() -> None:
    run = Run(replace(SETTINGS, itl_slo_s=0.01), specified=2)
    decision = run.steady(Load(names(2), rate_per_s=2.0), seconds=60)

    assert "SloUnreachable" in decision.conditions
    assert decision.service_rate_per_s is None
    assert run.specified == 2


def test_a_slower_engine_than_planned_is_learned() -> None:
    run = Run(specified=4)
    load = Load(names(4), rate_per_s=22.5)
    run.steady(load, seconds=60)
    believed = run.decisions[-1].service_rate_per_s
    for tick in range(1, 200):
        load.add(5.0)
        for counters in load.counters.values():
            counters["steps_total"] = counters.get("steps_total", 0) + 100
            counters["step_seconds_total"] = counters.get("step_seconds_total", 0) + 100 * 0.018 * 1.2
        run.tick(60 + 5.0 * tick, load.replicas(60 + 5.0 * tick))
    learned = run.decisions[-1].service_rate_per_s

    assert believed is not None
    assert learned is not None
    assert run.state.time_scale == pytest.approx(1.2, abs=0.01)
    assert learned < 0.85 * believed


class TestZero:
    settings = replace(SETTINGS, idle_to_zero_s=300.0)

    def test_an_idle_service_stops_after_its_time(self) -> None:
        run = Run(self.settings, specified=1)
        load = Load(names(1), rate_per_s=1.0)
        run.steady(load, seconds=60)
        load.rate_per_s = 0.0
        run.steady(load, seconds=290, begin_s=60)
        assert run.specified == 1
        decision = run.steady(load, seconds=15, begin_s=350)
        assert (decision.desired, run.specified) == (0, 0)
        assert next(each for each in run.decisions if each.desired == 0).reason is Reason.IDLE

    def test_silence_is_not_idleness(self) -> None:
        run = Run(self.settings, specified=1)
        load = Load(names(1), rate_per_s=0.0)
        for tick in range(1, 200):
            run.tick(5.0 * tick, load.replicas(5.0 * tick, never=True))
        assert run.specified == 1

    def test_a_loading_replica_is_not_taken(self) -> None:
        run = Run(self.settings, specified=1)
        for tick in range(1, 50):
            run.tick(5.0 * tick, (pending("loads", 0.0),))
        assert run.specified == 1

    def test_held_requests_wake_the_size_that_they_need(self) -> None:
        run = Run(self.settings, specified=0)
        assert run.tick(5.0, ()).desired == 0
        decision = run.tick(10.0, (), held_requests=2000)
        assert decision.reason is Reason.WAKE_UP
        assert decision.desired > 1


def test_the_same_snapshots_give_the_same_decisions() -> None:
    def decisions() -> list[object]:
        run = Run(specified=4)
        load = Load(names(4), rate_per_s=22.5)
        run.steady(load, seconds=300)
        load.rate_per_s = 60.0
        run.steady(load, seconds=300, begin_s=300)
        return list(run.decisions)

    assert decisions() == decisions()


def test_nothing_known_at_all_holds() -> None:
    run = Run(replace(SETTINGS, speed=None), specified=3)
    snapshot = Snapshot(time_s=5.0, replicas=(), specified=3)
    assert run.tick(snapshot.time_s, snapshot.replicas).desired == 3
