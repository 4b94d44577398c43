"""Pods, routers, faults and the loop: small fleets whose ends can be said beforehand."""

from dataclasses import replace

import pytest

from pagefleet.autoscaler.decision import Decision
from pagefleet.autoscaler.settings import Settings
from pagefleet.autoscaler.simulate.cases import LARGE_MODEL, Case, our_settings
from pagefleet.autoscaler.simulate.faults import Faults
from pagefleet.autoscaler.simulate.fleet import Conditions, Fleet, simulate
from pagefleet.autoscaler.simulate.outcome import Outcome
from pagefleet.autoscaler.simulate.policies.fixed import Static
from pagefleet.autoscaler.simulate.policies.ours import LeadTimeCapacity
from pagefleet.autoscaler.simulate.replica import EngineModel, Replica
from pagefleet.autoscaler.simulate.router import LeastRequests, PrefixAffinity, Router, Skewed, StaleLeastRequests
from pagefleet.autoscaler.simulate.workload import Arrival, Workload, from_rates, lognormal_lengths
from pagefleet.autoscaler.snapshot import Snapshot
from pagefleet.capacity.step_time import StepTime

LENGTHS = lognormal_lengths(2000, prompt_mean=1100, output_mean=200, sigma=0.8, seed=1)
CONDITIONS = Conditions(engine=LARGE_MODEL, initial_replicas=3, max_replicas=12, cold_start_s=(100.0, 140.0))


def steady(rate_per_s: float, seconds: float, *, seed: int = 7) -> Workload:
    return from_rates("steady", [(seconds, rate_per_s)], LENGTHS, seed=seed)


def step(before: float, after: float, *, seconds: float = 900) -> Workload:
    return from_rates("step", [(600, before), (seconds, after)], LENGTHS, seed=7)


class Scripted:
    """Set numbers at times."""

    interval_s = 5.0

    def __init__(self, *numbers: tuple[float, int]) -> None:
        self.numbers, self.snapshots = numbers, list[Snapshot]()

    def desired(self, snapshot: Snapshot) -> int:
        self.snapshots.append(snapshot)
        return next(number for time_s, number in reversed(self.numbers) if time_s <= snapshot.time_s)


def run_ours(
    workload: Workload, conditions: Conditions = CONDITIONS, *, router: Router | None = None, **changes: object
) -> tuple[Outcome, list[Decision]]:
    case = Case(name="", workload=workload, conditions=conditions)
    settings: Settings = replace(our_settings(case), **changes)  # type: ignore[arg-type]
    policy = LeadTimeCapacity(settings)
    return simulate(workload, conditions, policy, router=router), policy.decisions


def test_the_same_seed_gives_the_same_run() -> None:
    workload = steady(12.0, 300)
    one, other = (simulate(workload, CONDITIONS, Scripted((0, 3), (60, 5), (200, 2))) for _ in range(2))
    assert one == other
    assert simulate(workload, replace(CONDITIONS, seed=1), Scripted((0, 3), (60, 5), (200, 2))) != one


def test_a_pod_serves_after_its_cold_start_and_costs_from_its_creation() -> None:
    policy = Scripted((0, 1), (10, 2))
    conditions = replace(CONDITIONS, initial_replicas=1, cold_start_s=(50.0, 50.0))
    outcome = simulate(steady(1.0, 100), conditions, policy)

    assert outcome.replica_hours == pytest.approx((100 + 90) / 3600)
    readiness = {snapshot.time_s: len(snapshot.ready) for snapshot in policy.snapshots}
    assert (readiness[55.0], readiness[65.0]) == (1, 2)


def test_a_scale_down_finishes_what_it_has() -> None:
    policy = Scripted((0, 3), (60, 1))
    outcome = simulate(steady(12.0, 120), CONDITIONS, policy)

    draining = [snapshot for snapshot in policy.snapshots if len(snapshot.replicas) > len(snapshot.ready)]
    assert draining, "some snapshot shows replicas that drain"
    assert outcome.unfinished == 0
    assert outcome.replica_hours < (60 * 3 + 60 * 3) / 3600


def test_a_drain_is_called_off_before_a_pod_is_started() -> None:
    long_answers = Workload(name="long", arrivals=tuple(Arrival(0.1 * n, 100, 2000) for n in range(90)), duration_s=100)
    policy = Scripted((0, 3), (20, 2), (25, 3))
    outcome = simulate(long_answers, CONDITIONS, policy)

    assert {len(snapshot.replicas) for snapshot in policy.snapshots if snapshot.time_s < 90} == {3}
    assert outcome.scale_events == 2
    assert len(outcome.reversals_s) == 1


def test_requests_are_held_while_nothing_serves() -> None:
    policy = Scripted((0, 0), (10, 1))
    conditions = replace(CONDITIONS, initial_replicas=0, cold_start_s=(30.0, 30.0))
    outcome = simulate(steady(0.5, 60), conditions, policy)

    assert max(snapshot.held_requests for snapshot in policy.snapshots) > 0
    assert outcome.unfinished == 0
    assert outcome.in_time < outcome.requests


def test_reports_arrive_late_and_get_lost() -> None:
    policy = Scripted((0, 3))
    simulate(steady(3.0, 60), replace(CONDITIONS, scrape_delay_s=12.0, scrape_loss=0.5), policy)
    ages_s = [
        snapshot.time_s - replica.reading.read_s
        for snapshot in policy.snapshots
        for replica in snapshot.ready
        if replica.reading is not None
    ]
    assert min(ages_s) >= 12.0
    assert max(ages_s) >= 20.0


def load_of(replicas: int, router: Router) -> list[int]:
    workload = steady(4.0 * replicas, 60)
    fleet = Fleet(workload, replace(CONDITIONS, initial_replicas=replicas), Static(replicas), router=router)
    fleet.run()
    return sorted(pod.replica.counters.arrivals for pod in fleet._pods)


def test_routers_differ_in_what_they_know() -> None:
    even = load_of(4, LeastRequests())
    stale = load_of(4, StaleLeastRequests(interval_s=5.0))
    skewed = load_of(2, Skewed(0.85, seed=1))
    assert even[-1] < 1.1 * even[0]
    assert stale[-1] - stale[0] > even[-1] - even[0]
    assert skewed[1] == pytest.approx(0.85 * sum(skewed), rel=0.05)


def test_a_router_that_knows_prefixes_sends_them_where_they_are() -> None:
    replicas = [Replica(LARGE_MODEL, 2.0, 0.1) for _ in range(2)]
    replicas[1]._cached[5] = None
    assert PrefixAffinity().choose(Arrival(0.0, 600, 5, (5,)), replicas, 0.0) is replicas[1]
    assert PrefixAffinity().choose(Arrival(0.0, 600, 5, (6,)), replicas, 0.0) is replicas[0]


class TestOurPolicyUnderFaults:
    def test_constant_load_is_left_alone(self) -> None:
        outcome, _ = run_ours(steady(18.0, 1800))
        assert outcome.scale_events <= 2
        assert len(outcome.reversals_s) <= 1, "what was prepared for before anything was seen may go"
        assert outcome.attainment > 0.99

    def test_a_minute_without_reports_at_the_peak_takes_nothing_away(self) -> None:
        silent = replace(CONDITIONS, faults=Faults(silent_from_to_s=(700.0, 760.0)))
        outcome, decisions = run_ours(step(10.0, 18.0), silent)
        usual, _ = run_ours(step(10.0, 18.0))
        downs = [each for each in decisions[130:160] if each.desired < each.current]
        assert downs == []
        assert outcome.attainment >= usual.attainment - 0.02

    def test_a_pod_that_never_starts_is_replaced(self) -> None:
        stuck = replace(CONDITIONS, faults=Faults(stuck_from_to_s=(0.0, 700.0)))
        outcome, decisions = run_ours(step(10.0, 30.0, seconds=1500), stuck)
        assert any("StuckPending" in each.conditions for each in decisions)
        assert outcome.replicas[-1][1] > 5
        assert outcome.unfinished == 0

    def test_loading_pods_are_no_reason_for_more(self) -> None:
        slow = replace(CONDITIONS, cold_start_s=(350.0, 360.0))
        outcome, _ = run_ours(step(10.0, 25.0, seconds=1200), slow)
        assert max(replicas for _, replicas in outcome.replicas) <= 9, "4 are needed, and the backlog worked off"

    def test_a_broken_router_is_named(self) -> None:
        _, decisions = run_ours(steady(8.0, 600), router=Skewed(0.85, seed=3))
        assert any("Imbalanced" in each.conditions for each in decisions)

    def test_an_engine_slower_than_planned_is_learned(self) -> None:
        faults = Faults(slow_replicas=frozenset(f"replica-{n}" for n in range(40)), slow_factor=1.3)
        slow = replace(CONDITIONS, faults=faults)
        believed, _ = run_ours(steady(16.0, 900))
        outcome, _ = run_ours(steady(16.0, 900), slow)
        assert outcome.replicas
        assert outcome.replicas[-1][1] > (believed.replicas[-1][1] if believed.replicas else 3)

    def test_a_speed_that_no_plan_knows_is_learned(self) -> None:
        small = EngineModel(
            step=StepTime(base_s=0.03, prefill_token_s=4e-4, kv_token_s=1e-7, sequence_s=2.5e-3),
            kv_tokens=60_000,
            max_num_seqs=64,
            max_num_batched_tokens=512,
        )
        conditions = Conditions(engine=small, cold_start_s=(20.0, 30.0))
        lengths = lognormal_lengths(2000, prompt_mean=120, output_mean=80, sigma=0.6, seed=1)
        workload = from_rates("cpu", [(200, 0.5), (300, 4.0)], lengths, seed=5)
        planned, by_plan = run_ours(workload, conditions)
        speed = our_settings(Case(name="", workload=workload, conditions=conditions)).speed
        assert speed is not None
        learned, by_steps = run_ours(workload, conditions, speed=replace(speed, step=None))

        assert by_steps[0].speed_source is None
        assert by_steps[-1].speed_source == "learned"
        assert by_plan[-1].desired > 2
        assert abs(by_steps[-1].desired - by_plan[-1].desired) <= 1
        assert learned.attainment > planned.attainment - 0.03

    @pytest.mark.parametrize("replicas", [3, 6])
    def test_an_idle_service_sleeps_and_wakes(self, replicas: int) -> None:
        workload = from_rates("nap", [(200, 3.0), (1200, 0.0), (300, 3.0)], LENGTHS, seed=5)
        outcome, decisions = run_ours(
            workload, replace(CONDITIONS, initial_replicas=replicas), idle_to_zero_s=300.0, min_replicas=1
        )
        assert min(each.desired for each in decisions) == 0
        assert outcome.unfinished == 0
        assert decisions[-1].desired >= 1
