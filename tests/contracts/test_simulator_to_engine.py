"""The simulated replica counts what the engine counts: an autoscaler learns from either as from the other."""

import random

import pytest

from pagefleet.autoscaler.simulate.replica import EngineModel, Replica, Request
from pagefleet.autoscaler.simulate.workload import Arrival
from pagefleet.capacity.step_time import StepTime
from pagefleet.engine.scheduled_step import ScheduledStep
from tests.support.sequences import PLAIN_TOKEN, make_scheduler, make_sequence

BLOCK_SIZE = 4
BUDGET = 64
SEATS = 12
STEP_S = 1.0
"""Every simulated step takes as long, so that both sides get the same requests before the same step."""


def drawn(seed: int, count: int) -> list[Arrival]:
    draws = random.Random(seed)
    return sorted(
        (Arrival(draws.randrange(60) * STEP_S, draws.randint(1, 90), draws.randint(1, 40)) for _ in range(count)),
        key=lambda arrival: arrival.time_s,
    )


def engine_steps(arrivals: list[Arrival], blocks: int) -> tuple[list[ScheduledStep], int]:
    """Run the real scheduler; return its steps, and its prompt tokens of admitted requests."""
    scheduler = make_scheduler(
        blocks=blocks,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=BUDGET,
        max_num_seqs=SEATS,
        long_prefill_token_threshold=0,  # the simulator gives the budget to the oldest
    )
    left, steps, now_s = list(enumerate(arrivals)), [], 0.0
    while left or scheduler.has_work():
        while left and left[0][1].time_s <= now_s:
            number, arrival = left.pop(0)
            scheduler.add(make_sequence(str(number), arrival.prompt_tokens, arrival.output_tokens))
        if scheduler.has_work():
            step = scheduler.schedule(now_s)
            sampling = [sequence for entry in step.entries if entry.samples for sequence in entry.sequences]
            scheduler.finish_step(step, {sequence.sequence_id: PLAIN_TOKEN for sequence in sampling})
            steps.append(step)
        now_s += STEP_S
    return steps, scheduler.prompt_tokens_total


def simulated(arrivals: list[Arrival], blocks: int) -> Replica:
    step = StepTime(base_s=STEP_S, prefill_token_s=0.0, kv_token_s=0.0, sequence_s=0.0)
    model = EngineModel(
        step=step,
        kv_tokens=blocks * BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        max_num_seqs=SEATS,
        max_num_batched_tokens=BUDGET,
    )
    replica = Replica(model, ttft_slo_s=1.0, itl_slo_s=1.0)
    left, now_s = list(arrivals), 0.0
    while left or replica.in_flight:
        while left and left[0].time_s <= now_s:
            replica.submit(Request(left.pop(0)))
        if replica.begin_step() is not None:
            replica.end_step(now_s + STEP_S)
        now_s += STEP_S
    return replica


@pytest.mark.parametrize("seed", range(5))
def test_the_same_requests_make_the_same_counts(seed: int) -> None:
    arrivals = drawn(seed, count=60)
    steps, prompt_tokens = engine_steps(arrivals, blocks=2000)
    counters = simulated(arrivals, blocks=2000).counters

    assert counters.preemptions == 0
    assert counters.steps == len(steps)
    assert counters.prompt_tokens == prompt_tokens == sum(arrival.prompt_tokens for arrival in arrivals)
    assert counters.computed_tokens == sum(step.prefill_tokens for step in steps) == prompt_tokens
    assert counters.sequence_steps == sum(step.decodes for step in steps)
    assert counters.kv_tokens_read == sum(step.kv_tokens_read for step in steps)


def test_what_preemption_computes_again_is_counted_again() -> None:
    arrivals = drawn(0, count=60)
    steps, _ = engine_steps(arrivals, blocks=60)
    counters = simulated(arrivals, blocks=60).counters

    assert counters.preemptions
    assert sum(len(step.preempted) for step in steps)
    prompt_tokens = sum(arrival.prompt_tokens for arrival in arrivals)
    assert sum(step.prefill_tokens for step in steps) > prompt_tokens
    assert counters.computed_tokens > prompt_tokens
    assert counters.computed_tokens == pytest.approx(sum(step.prefill_tokens for step in steps), rel=0.1)
    assert counters.kv_tokens_read == pytest.approx(sum(step.kv_tokens_read for step in steps), rel=0.1)
