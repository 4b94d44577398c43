"""The fast replica makes the very steps of the plain one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet.autoscaler.simulate.replica import EngineModel, Replica, Request
from pagefleet.autoscaler.simulate.workload import Arrival
from pagefleet.capacity.step_time import StepTime
from tests.autoscaler.simulate.plain_replica import PlainReplica, PlainRequest

STEP = StepTime(base_s=0.01, prefill_token_s=1e-4, kv_token_s=1e-6, sequence_s=1e-4)

arrivals = st.lists(
    st.builds(
        Arrival,
        time_s=st.integers(0, 30).map(lambda tick: tick / 50),
        prompt_tokens=st.integers(1, 40),
        output_tokens=st.integers(1, 25),
    ),
    min_size=1,
    max_size=25,
)
models = st.builds(
    lambda blocks, size, seqs, budget: EngineModel(
        step=STEP, kv_tokens=blocks * size, block_size=size, max_num_seqs=seqs, max_num_batched_tokens=budget
    ),
    blocks=st.integers(66, 120),
    size=st.sampled_from([1, 2, 4]),
    seqs=st.integers(1, 12),
    budget=st.integers(13, 64),
)


def play_fast(model: EngineModel, given_arrivals: list[Arrival]) -> tuple[list[Request], int]:
    replica = Replica(model, ttft_slo_s=1.0, itl_slo_s=0.1)
    requests = [Request(arrival) for arrival in given_arrivals]
    left, now_s = list(requests), 0.0
    while left or replica.in_flight:
        while left and left[0].arrival.time_s <= now_s:
            replica.submit(left.pop(0))
        took_s = replica.begin_step()
        if took_s is None:
            assert left, "what was accepted must end"
            now_s = max(now_s, left[0].arrival.time_s)
            continue
        assert 0 <= replica.blocks_active <= model.blocks_total
        now_s += took_s
        replica.end_step(now_s)
    assert (replica.blocks_active, replica.tokens_active, replica.running) == (0, 0, 0)
    return requests, replica.counters.preemptions


def play_plain(model: EngineModel, given_arrivals: list[Arrival]) -> tuple[list[PlainRequest], int]:
    replica = PlainReplica(model)
    requests = [PlainRequest(arrival) for arrival in given_arrivals]
    left, now_s = list(requests), 0.0
    while left or replica.running or replica.waiting:
        while left and left[0].arrival.time_s <= now_s:
            replica.waiting.append(left.pop(0))
        made = replica.step()
        if made is None:
            now_s = max(now_s, left[0].arrival.time_s)
            continue
        now_s += made[0]
        replica.end(made[1], now_s)
    return requests, replica.preemptions


@settings(max_examples=300, deadline=None)
@given(model=models, given_arrivals=arrivals)
def test_every_token_comes_when_the_plain_replica_has_it(model: EngineModel, given_arrivals: list[Arrival]) -> None:
    given_arrivals.sort(key=lambda arrival: arrival.time_s)
    fast, fast_preemptions = play_fast(model, given_arrivals)
    plain, plain_preemptions = play_plain(model, given_arrivals)

    assert fast_preemptions == plain_preemptions
    for one, other in zip(fast, plain, strict=True):
        assert one.first_token_s == pytest.approx(other.first_token_s)
        assert one.end_s == pytest.approx(other.end_s)


def test_a_shared_prefix_is_computed_and_held_once() -> None:
    model = EngineModel(step=STEP, kv_tokens=4096, block_size=16, hash_block_tokens=512)
    replica = Replica(model, ttft_slo_s=1.0, itl_slo_s=0.1)
    first, second = (Request(Arrival(0.0, 1100, 8, (1, 2))) for _ in range(2))
    replica.submit(first)
    replica.begin_step()
    replica.end_step(1.0)
    held = replica.blocks_active
    replica.submit(second)
    replica.begin_step()

    assert replica.counters.computed_tokens == 1100 + (1100 - 1024)
    assert replica.counters.prefix_hit_tokens == 1024
    assert replica.blocks_active - held == -(-(1100 - 1024) // 16) + 0
    for now_s in range(2, 20):
        replica.end_step(float(now_s))
        if replica.begin_step() is None:
            break
    assert replica.blocks_active == 0
    assert replica.prefix_hit_blocks(Arrival(0.0, 1100, 8, (1, 2, 3))) == 2


def test_cached_prefixes_give_way_to_live_sequences() -> None:
    model = EngineModel(step=STEP, kv_tokens=2048, block_size=16, hash_block_tokens=512)
    replica = Replica(model, ttft_slo_s=1.0, itl_slo_s=0.1)
    for number, prompt in enumerate((1024, 1800)):
        replica.submit(Request(Arrival(0.0, prompt, 1, (1, 2) if number == 0 else ())))
        replica.begin_step()
        replica.end_step(float(number))
    assert replica.prefix_hit_blocks(Arrival(0.0, 1024, 1, (1, 2))) == 0
