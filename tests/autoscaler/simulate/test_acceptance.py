"""The acceptance suite's judgements on a generated day of a small engine: what must hold on any load."""

from functools import partial

import pytest

from pagefleet.autoscaler.simulate.acceptance import SPEED_ERROR, judge
from pagefleet.autoscaler.simulate.cases import (
    Candidate,
    Case,
    baseline_candidates,
    clairvoyant_candidates,
    our_candidate,
)
from pagefleet.autoscaler.simulate.fleet import Conditions
from pagefleet.autoscaler.simulate.frontier import Point, best_tuned, run_candidate
from pagefleet.autoscaler.simulate.policies.hpa import Hpa, in_flight
from pagefleet.autoscaler.simulate.replica import EngineModel
from pagefleet.autoscaler.simulate.workload import from_rates, lognormal_lengths
from pagefleet.capacity.step_time import StepTime

ENGINE = EngineModel(
    step=StepTime(base_s=0.03, prefill_token_s=4e-4, kv_token_s=1e-7, sequence_s=2.5e-3),
    kv_tokens=60_000,
    max_num_seqs=64,
    max_num_batched_tokens=512,
)
DAY = [(150.0, rate) for rate in (2.0, 3.0, 4.5, 6.0, 7.5, 7.0, 8.0, 6.0, 4.0, 3.0)]
FIELD = (
    "WVA V1 0/300 s",
    "WVA V2 0/300 s",
    "WVA V2 240/240 s",
    "Dynamo throughput 0.85",
    "Dynamo throughput 1",
    "KPA 10",
    "HPA KV 0.1",
)


@pytest.fixture(scope="module")
def points() -> list[Point]:
    lengths = lognormal_lengths(1000, prompt_mean=120, output_mean=80, sigma=0.6, seed=1)
    case = Case(
        name="generated day",
        workload=from_rates("day", DAY, lengths, seed=11, variation=1.0),
        conditions=Conditions(engine=ENGINE, initial_replicas=2, cold_start_s=(20.0, 30.0), max_replicas=20),
    )
    tuned = [
        Candidate(family="HPA in-flight", setting=f"{target:g}", make=partial(Hpa, [(in_flight, target)]))
        for target in (4.0, 6.0, 9.0)
    ]
    others = [each for each in baseline_candidates(case) if each.name in FIELD]
    ours = run_candidate(case, our_candidate(case))
    wrong = [our_candidate(case, speed_error=error) for error in (SPEED_ERROR, -SPEED_ERROR)]
    return [
        ours,
        *(run_candidate(case, each, ours.outcome) for each in (*wrong, *clairvoyant_candidates(case), *tuned, *others)),
    ]


def test_no_target_of_the_field_serves_more_for_less(points: list[Point]) -> None:
    verdicts = judge({"generated day": points}, lead_time_s=30.0)
    missed = [f"{each.requirement}: {each.found}" for each in verdicts if not each.is_met and each.case != "all"]
    assert missed == []


def test_ours_is_near_the_one_that_knows_the_future(points: list[Point]) -> None:
    ours, future = points[0].outcome, best_tuned([each for each in points if each.family == "clairvoyant"]).outcome
    assert ours.attainment >= 0.97
    assert ours.replica_hours <= 1.45 * future.replica_hours
