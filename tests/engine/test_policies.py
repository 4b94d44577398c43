"""Priority, ageing, capacity policies, and why a sequence waits."""

import pytest

from pagefleet.engine.capacity_policies import HIGHEST_RATIO, LOWEST_RATIO, CapacityPolicyName, Ratio
from pagefleet.engine.errors import RequestRefused
from pagefleet.engine.scheduler import WAITING_REASONS, Scheduler
from tests.support.sequences import make_scheduler, make_sequence, run_step


def run_to_end(scheduler: Scheduler) -> list[str]:
    """Return the requests in the order in which they got their first tokens."""
    order: dict[str, None] = {}
    while scheduler.has_work():
        order |= dict.fromkeys(run_step(scheduler))
    return list(order)


@pytest.mark.parametrize(("policy", "order"), [("fcfs", ["a", "b", "c", "d"]), ("priority", ["c", "b", "d", "a"])])
def test_priority_goes_before_arrival(policy: str, order: list[str]) -> None:
    scheduler = make_scheduler(max_num_seqs=1, scheduling_policy=policy)
    for name, priority in (("a", 5), ("b", 0), ("c", -1), ("d", 0)):
        scheduler.add(make_sequence(name, priority=priority))
    assert run_to_end(scheduler) == order


def test_the_lowest_priority_is_preempted_and_keeps_its_place() -> None:
    scheduler = make_scheduler(blocks=4, block_size=4, max_num_seqs=2, scheduling_policy="priority")
    low, high, late = (
        make_sequence(name, prompt=7, max_tokens=8, priority=priority)
        for name, priority in (("low", 1), ("high", 0), ("late", 1))
    )
    scheduler.add(low)
    run_step(scheduler)
    scheduler.add(high)
    run_step(scheduler)
    scheduler.add(late)
    order = run_to_end(scheduler)
    assert (low.preemptions, high.preemptions) == (1, 0)
    assert order.index("low") < order.index("late"), "the older of equal priority comes back first"


def steps_until_sampled(*, ages: bool) -> int:
    """Run one long prompt under a stream of short ones and count the steps that it takes."""
    scheduler = make_scheduler(
        blocks=4000, max_num_seqs=64, max_num_batched_tokens=64, max_model_len=4000, long_prefill_token_threshold=4
    )
    long = make_sequence("long", prompt=1500, max_tokens=1)
    scheduler.add(long)
    steps = 0
    while long.finish_reason is None:
        scheduler.add(make_sequence(f"short-{steps}", prompt=8, max_tokens=2))
        if not ages:
            long.capped_steps = 0
        got = run_step(scheduler)
        assert sum(got.values()) - got.get("long", 0) >= 4, "short ones are not pushed out"
        steps += 1
    return steps


def test_a_long_prompt_gets_more_the_longer_it_takes() -> None:
    assert steps_until_sampled(ages=True) < 0.3 * steps_until_sampled(ages=False)


@pytest.mark.parametrize(("policy", "running"), [("on-demand", 5), ("ratio", 2), ("no-evict", 1)])
def test_policies_reserve_more_or_less(policy: CapacityPolicyName, running: int) -> None:
    scheduler = make_scheduler(blocks=13, block_size=4, capacity_policy=policy)
    for name in "abcde":
        scheduler.add(make_sequence(name, prompt=8, max_tokens=20))
    run_step(scheduler)
    assert scheduler.running == running
    assert scheduler.waiting_by_reason["blocks"] == 5 - running
    run_to_end(scheduler)
    assert (scheduler.preemptions_total == 0) == (policy == "no-evict")


def test_the_ratio_falls_slowly_and_rises_at_once() -> None:
    policy = Ratio()
    sequence = make_sequence("a", prompt=10, max_tokens=10)
    assert policy.reserved_tokens(sequence) == 17
    for _ in range(2000):
        policy.after_step(has_preempted=False)
    assert policy.ratio == LOWEST_RATIO
    assert policy.reserved_tokens(sequence) == 11
    policy.after_step(has_preempted=True)
    assert policy.ratio == HIGHEST_RATIO


def test_what_never_evicts_refuses_choices_that_never_fit_together() -> None:
    scheduler = make_scheduler(blocks=10, block_size=4, capacity_policy="no-evict")
    with pytest.raises(RequestRefused, match="needs 14 KV blocks, this engine has 10"):
        scheduler.add(make_sequence("a", prompt=8, max_tokens=8, n=6))
    scheduler.add(make_sequence("b", prompt=8, max_tokens=8, n=4))
    run_to_end(scheduler)
    assert scheduler.preemptions_total == 0


def test_every_reason_to_wait() -> None:
    places = make_scheduler(max_num_seqs=1)
    budget = make_scheduler(max_num_batched_tokens=16)
    for scheduler in (places, budget):
        for name in "abcde":
            scheduler.add(make_sequence(name, prompt=16, max_tokens=9))
        run_step(scheduler)
    assert places.waiting_by_reason == {**dict.fromkeys(WAITING_REASONS, 0), "sequences": 4}
    assert budget.waiting_by_reason["tokens"] == 1
    shared = make_scheduler(has_prefix_cache=True)
    for name in "abc":
        shared.add(make_sequence(name, prompt=16))
    run_step(shared)
    assert shared.waiting_by_reason["shared_prefix"] == 2


def test_a_static_batch_runs_to_its_end() -> None:
    scheduler = make_scheduler(batching="static", max_num_seqs=2)
    for name, tokens in (("a", 2), ("b", 5), ("c", 2)):
        scheduler.add(make_sequence(name, max_tokens=tokens))
    steps = [sorted(run_step(scheduler)) for _ in range(6)]
    assert steps == [["a", "b"], ["a", "b"], ["b"], ["b"], ["b"], ["c"]]
    assert scheduler.waiting_by_reason["batch"] == 0


def test_a_dynamic_batch_waits_for_more_until_its_time_is_over() -> None:
    scheduler = make_scheduler(batching="dynamic", batching_timeout_s=0.5, max_num_seqs=2)
    first = make_sequence("a")
    first.arrival_s = 10.0
    scheduler.add(first)
    assert scheduler.schedule(10.4).entries == []
    assert scheduler.waiting_by_reason["batch"] == 1
    assert [entry.sequence for entry in scheduler.schedule(10.5).entries] == [first]
    full = make_scheduler(batching="dynamic", batching_timeout_s=1e9, max_num_seqs=2)
    full.add(make_sequence("a"))
    full.add(make_sequence("b"))
    assert sorted(run_step(full)) == ["a", "b"], "a full batch waits for nothing"
