"""The accidents that autoscalers of model servers are known for, each with the outcome that is safe.

A small engine that starts within half a minute keeps the fleets small; what goes wrong does not depend on its size.
"""

from dataclasses import replace
from itertools import pairwise

import pytest

from pagefleet.autoscaler.decision import Decision, Reason
from pagefleet.autoscaler.simulate.cases import Case, our_settings
from pagefleet.autoscaler.simulate.faults import Faults
from pagefleet.autoscaler.simulate.fleet import Conditions, simulate
from pagefleet.autoscaler.simulate.outcome import Outcome
from pagefleet.autoscaler.simulate.policies.hpa import Hpa, occupancy
from pagefleet.autoscaler.simulate.policies.ours import LeadTimeCapacity
from pagefleet.autoscaler.simulate.replica import EngineModel
from pagefleet.autoscaler.simulate.router import Router, Skewed, StaleLeastRequests
from pagefleet.autoscaler.simulate.workload import Arrival, Workload, from_rates, lognormal_lengths
from pagefleet.autoscaler.snapshot import Snapshot
from pagefleet.capacity.step_time import StepTime
from tests.autoscaler.snapshots import SETTINGS, Load, Run, pending, reading, ready

ENGINE = EngineModel(
    step=StepTime(base_s=0.03, prefill_token_s=4e-4, kv_token_s=1e-7, sequence_s=2.5e-3),
    kv_tokens=60_000,
    max_num_seqs=64,
    max_num_batched_tokens=512,
)
CONDITIONS = Conditions(engine=ENGINE, initial_replicas=3, max_replicas=12, cold_start_s=(20.0, 30.0))
CHATS = lognormal_lengths(1000, prompt_mean=120, output_mean=80, sigma=0.6, seed=1)
PER_REPLICA = 2.4
"""Chats per second of one replica, within the objectives and the planned share."""
FOUR = [f"replica-{index}" for index in range(4)]


def chats(*stretches: tuple[float, float], lengths: list[Arrival] = CHATS) -> Workload:
    """Return stretches of (seconds, chats per second)."""
    return from_rates("chats", stretches, lengths, seed=7, variation=1.0)


class Watched(LeadTimeCapacity):
    """Keep what was seen as well."""

    def __init__(self, case: Case, changes: dict[str, object]) -> None:
        super().__init__(replace(our_settings(case), **changes))  # type: ignore[arg-type]
        self.snapshots: list[Snapshot] = []

    def desired(self, snapshot: Snapshot) -> int:
        self.snapshots.append(snapshot)
        return super().desired(snapshot)

    def between(self, begin_s: float, end_s: float) -> list[Decision]:
        """Return the decisions of a stretch of time."""
        return self.decisions[int(begin_s / 5) : int(end_s / 5)]


def run(
    workload: Workload,
    conditions: Conditions = CONDITIONS,
    *,
    faults: Faults | None = None,
    router: Router | None = None,
    **changes: object,
) -> tuple[Outcome, Watched]:
    if faults is not None:
        conditions = replace(conditions, faults=faults)
    policy = Watched(Case(name="", workload=workload, conditions=conditions), changes)
    return simulate(workload, conditions, policy, router=router), policy


def ups(decisions: list[Decision]) -> list[Decision]:
    return [each for each in decisions if each.desired > each.current]


def downs(decisions: list[Decision]) -> list[Decision]:
    return [each for each in decisions if each.desired < each.current]


BUSY = chats((400, 2.5 * PER_REPLICA))


def test_f01_a_missing_report_is_not_idleness() -> None:
    outcome, policy = run(BUSY, faults=Faults(silent_from_to_s=(100.0, 400.0)), idle_to_zero_s=60.0, down_window_s=60.0)
    assert downs(policy.between(100, 400)) == []
    assert policy.decisions[60].limited_by in ("signalMissing", "downWindow")
    assert "SignalMissing" in policy.decisions[60].conditions
    assert outcome.attainment > 0.97


def test_f02_one_silent_replica_does_not_keep_the_others() -> None:
    faults = Faults(silent_from_to_s=(50.0, 900.0), silent_replicas=frozenset({"replica-0"}))
    six = replace(CONDITIONS, initial_replicas=6)
    outcome, policy = run(chats((600, 1.0)), six, faults=faults, down_window_s=60.0)
    assert policy.decisions[-1].desired < 6
    assert outcome.attainment > 0.99


def test_f02_no_requests_are_a_number_and_not_unknown() -> None:
    outcome, policy = run(chats((100, 5.0), (500, 0.0)), down_window_s=60.0)
    assert policy.decisions[-1].desired == 1
    assert policy.decisions[-1].service_rate_per_s == pytest.approx(policy.decisions[20].service_rate_per_s, rel=0.3)
    assert outcome.unfinished == 0


def test_f03_reports_that_are_too_old_take_nothing_away() -> None:
    late = replace(CONDITIONS, scrape_delay_s=20.0)
    _, policy = run(chats((200, 2.5 * PER_REPLICA), (300, 0.5)), late, down_window_s=60.0)
    assert downs(policy.decisions) == []
    assert policy.decisions[-1].limited_by == "signalMissing"


def test_f03_what_a_gone_replica_last_said_is_forgotten() -> None:
    run_ = Run(specified=4)
    load = Load(FOUR, rate_per_s=20.0, queue_depth=200, queue_age_s=9.0)
    run_.steady(load, seconds=10)
    gone = load.replicas(15.0, silent=FOUR)[1:]
    load.gauges = {}
    run_.tick(15.0, gone)
    before = run_.decisions[-1].candidates["backlog"]
    run_.tick(20.0, (ready("replica-1", reading(20.0)),))
    assert "backlog" not in run_.decisions[-1].candidates
    assert before > 1


def test_f04_replicas_that_load_are_not_ordered_again() -> None:
    slow = replace(CONDITIONS, initial_replicas=2, max_replicas=40, cold_start_s=(170.0, 180.0))
    outcome, policy = run(chats((60, 4.0), (300, 5 * PER_REPLICA)), slow)
    most = max(each.desired for each in policy.decisions)
    asked = max(max(each.candidates.values()) for each in policy.decisions)
    assert 5 <= most <= asked + 1
    assert outcome.unfinished == 0


def test_f05_a_stuck_replica_is_replaced_and_does_not_freeze_the_fleet() -> None:
    faults = Faults(stuck_from_to_s=(0.0, 90.0))
    workload = chats((40, 3.0), (260, 3.5 * PER_REPLICA), (400, 1.0))
    outcome, policy = run(workload, replace(CONDITIONS, initial_replicas=2), faults=faults, down_window_s=60.0)
    assert any("StuckPending" in each.conditions for each in policy.decisions)
    assert max(len(snapshot.ready) for snapshot in policy.snapshots) >= 4
    assert downs(policy.between(350, 700)), "less demand still takes replicas away"
    assert outcome.unfinished == 0


def test_f06_long_prompts_saturate_while_the_cache_is_empty() -> None:
    prompts = [Arrival(0.0, 1500, 4)]
    workload = chats((400, 3.0), lengths=prompts)
    one = replace(CONDITIONS, initial_replicas=1)
    _, policy = run(workload, one)
    by_occupancy = simulate(workload, one, Hpa([(occupancy, 0.7)]))
    assert by_occupancy.replicas == (), "a policy of occupancy sees nothing"
    assert policy.decisions[-1].desired >= 3
    assert policy.decisions[-1].candidates["kvOccupancy"] < 0.7


def test_f07_blocks_that_are_half_empty_ask_for_nothing_alone() -> None:
    """Prompts of 17 tokens hold two blocks of 16: 53 % of what is counted is tokens."""
    settings = replace(SETTINGS, max_replicas=20)
    run_ = Run(settings, specified=4)
    load = Load(FOUR, rate_per_s=8.0, blocks_active=int(0.667 * 25_625))
    decision = run_.steady(load, seconds=120)
    assert decision.candidates["kvOccupancy"] == pytest.approx(4 * 0.667 / 0.8, rel=0.01)
    assert run_.specified == 4


def test_f07_peaks_of_different_times_are_not_added() -> None:
    run_ = Run(specified=4)
    for tick in range(1, 40):
        now_s = 5.0 * tick
        full = {name: 20_000 if index == tick % 4 else 2_000 for index, name in enumerate(FOUR)}
        run_.tick(now_s, [ready(name, reading(now_s, blocks_active=held)) for name, held in full.items()])
    assert run_.decisions[-1].candidates["kvOccupancy"] < 2


def test_f08_what_only_the_prefix_cache_holds_is_free() -> None:
    shared = [Arrival(0.0, 1100, 20, (number, 1000 + number)) for number in range(60)]
    _, policy = run(chats((150, 2.0), (250, 0.05), lengths=shared), down_window_s=60.0)
    last = [replica.reading for replica in policy.snapshots[-1].ready]
    assert max(each.occupancy for each in last if each is not None) < 0.1
    assert policy.decisions[-1].desired == 1


def test_f09_the_knee_is_met_before_a_queue_forms() -> None:
    rising = chats(*[(20.0, PER_REPLICA * (1 + 0.05 * number)) for number in range(30)])
    outcome, policy = run(rising, replace(CONDITIONS, initial_replicas=1))
    first = ups(policy.decisions)[0]
    assert first.reason in (Reason.DEMAND, Reason.BACKLOG)
    assert "queueDepth" not in first.candidates
    assert max(each.desired for each in policy.decisions) <= 5, "2.5 replicas of load at the end, and its growth"
    assert outcome.attainment > 0.95


def test_f10_a_hot_replica_is_named_and_not_multiplied() -> None:
    _, policy = run(
        chats((300, 1.2 * PER_REPLICA)), replace(CONDITIONS, initial_replicas=2), router=Skewed(0.85, seed=3)
    )
    assert any("Imbalanced" in each.conditions for each in policy.decisions)
    assert max(each.desired for each in policy.decisions) <= 5


@pytest.mark.parametrize("load", [0.97, 1.0, 1.03])
def test_f11_constant_load_at_a_threshold_does_not_flap(load: float) -> None:
    outcome, _ = run(chats((1200, 2 * PER_REPLICA * load)), replace(CONDITIONS, initial_replicas=2))
    times_s = outcome.reversals_s
    assert all(later - earlier >= 2 * 30.0 for earlier, later in pairwise(times_s))
    assert len(times_s) <= 4


def test_f12_a_surge_is_answered_at_once_and_not_one_by_one() -> None:
    workload = chats((120, 2.0), (200, 4 * PER_REPLICA))
    outcome, policy = run(workload, replace(CONDITIONS, initial_replicas=1))
    reached_s = next(5.0 * index for index, each in enumerate(policy.decisions) if each.desired >= 4)
    assert reached_s <= 120 + 35
    assert len(ups(policy.between(120, reached_s + 5))) <= 4
    assert outcome.unfinished == 0


def test_f13_a_scale_down_ends_no_request() -> None:
    waves = [(60.0, rate) for _ in range(6) for rate in (10.0, 1.0, 1.0)]
    outcome, _ = run(chats(*waves), down_window_s=30.0, down_interval_s=5.0)
    assert sum(after < before for (_, before), (_, after) in pairwise(outcome.replicas)) >= 3
    assert outcome.unfinished == 0


def test_f14_zero_wakes_to_what_is_held_and_never_sleeps_while_one_loads() -> None:
    nap = chats((60, 2.0), (200, 0.0), (200, 3 * PER_REPLICA))
    outcome, policy = run(nap, idle_to_zero_s=60.0, down_window_s=60.0)
    awake = next(each for each in policy.decisions if each.current == 0 and each.desired > 0)
    assert awake.reason is Reason.WAKE_UP
    assert max(each.desired for each in policy.between(260, 300)) >= 3
    loading = [snapshot for snapshot in policy.snapshots if snapshot.pending and snapshot.time_s > 260]
    assert loading
    assert all(each.desired > 0 for each in policy.between(265, 460))
    assert outcome.unfinished == 0


def test_f15_a_router_that_knows_late_makes_no_fleet_grow_without_end() -> None:
    workload = chats((60, 3.0), (300, 3 * PER_REPLICA))
    small = replace(CONDITIONS, initial_replicas=2, max_replicas=40)
    herd, policy = run(workload, small, router=StaleLeastRequests(10.0))
    _, usual = run(workload, small)
    most = max(each.desired for each in usual.decisions)
    assert max(each.desired for each in policy.decisions) <= 2 * most
    assert herd.unfinished == 0


def test_f16_another_writer_is_followed_and_not_fought() -> None:
    faults = Faults(written_by_others=((100.0, 7), (105.0, 7)))
    outcome, policy = run(chats((400, 2 * PER_REPLICA)), faults=faults)
    after = policy.between(105, 400)
    assert after[0].current == 7, "what is there is where the next decision begins"
    assert ups(after) == []
    assert all(later - earlier >= 60.0 for earlier, later in pairwise(outcome.reversals_s) if earlier > 100)


def test_f17_a_fleet_that_nobody_can_read_is_held_and_named() -> None:
    _, policy = run(BUSY, faults=Faults(silent_from_to_s=(0.0, 1e9)), idle_to_zero_s=30.0)
    assert {each.desired for each in policy.decisions} == {3}
    assert all("SignalMissing" in each.conditions for each in policy.decisions[1:])


def test_f18_a_queue_of_hundreds_on_one_replica_is_seen() -> None:
    """Its processor may be as busy or as idle as it likes."""
    run_ = Run(replace(SETTINGS, speed=None), specified=1)
    load = Load(["replica-0"], rate_per_s=2.0, queue_depth=432, queue_age_s=60.0, in_flight=500)
    decision = run_.steady(load, seconds=5)
    assert (decision.desired, decision.reason) == (2, Reason.QUEUE_DEPTH)


@pytest.mark.parametrize("jump_s", [-3600.0, 7200.0])
def test_a_clock_that_jumps_in_a_busy_fleet(jump_s: float) -> None:
    outcome, policy = run(BUSY, faults=Faults(clock_jump=(150.0, jump_s)), idle_to_zero_s=60.0)
    assert sum("ClockJump" in each.conditions for each in policy.decisions) == 1
    _, usual = run(BUSY, idle_to_zero_s=60.0)
    differing = [
        (one.desired, other.desired)
        for one, other in zip(policy.decisions, usual.decisions, strict=True)
        if one.desired != other.desired
    ]
    assert len(differing) <= 4, "windows go on as if it had not jumped"
    assert outcome.attainment > 0.97


def test_garbage_and_counters_that_begin_again() -> None:
    names = frozenset({"replica-1"})
    faults = Faults(
        garbage_from_to_s=(100.0, 250.0),
        garbage_replicas=names,
        counters_begin_again_s=((60.0, "replica-0"), (280.0, "replica-2")),
    )
    outcome, policy = run(BUSY, faults=faults)
    assert "UnusableReport" in policy.decisions[30].conditions
    assert "UnusableReport" not in policy.decisions[55].conditions
    assert {each.desired for each in policy.decisions} <= {3, 4}
    assert outcome.attainment > 0.97
    assert outcome.scale_events <= 3


def test_pending_ones_of_unknown_speed_are_not_multiplied() -> None:
    run_ = Run(replace(SETTINGS, speed=None), specified=2)
    load = Load(["replica-0"], rate_per_s=2.0, queue_depth=50, queue_age_s=60.0)
    for tick in range(1, 20):
        load.add(5.0)
        new = [pending(f"new-{index}", 0.0) for index in range(run_.specified - 1)]
        run_.tick(5.0 * tick, (*load.replicas(5.0 * tick), *new))
    assert run_.specified == 2
