from typing import Any

import pytest

from pagefleet.engine.errors import QueueFull, RequestRefused
from pagefleet.engine.scheduler_limits import SchedulerLimits
from tests.support.sequences import END_TOKEN, granted, make_scheduler, make_sequence, run_step


def test_prompts_and_decodes_share_a_step() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", prompt=5))
    assert run_step(scheduler) == {"a": 5}
    scheduler.add(make_sequence("b", prompt=7))
    assert run_step(scheduler) == {"a": 1, "b": 7}


def test_a_prompt_is_cut_into_chunks_of_the_budget() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=16)
    scheduler.add(make_sequence("a", prompt=40))
    assert [run_step(scheduler) for _ in range(4)] == [{"a": 16}, {"a": 16}, {"a": 8}, {"a": 1}]


def test_one_long_prompt_leaves_room_for_others() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=64)
    scheduler.add(make_sequence("long", prompt=300))
    for name in ("b", "c", "d"):
        scheduler.add(make_sequence(name, prompt=10))
    assert run_step(scheduler) == {"long": 16, "b": 10, "c": 10, "d": 10}


@pytest.mark.parametrize(
    ("threshold", "live", "cap"), [(None, 1, 64), (None, 2, 32), (None, 4, 16), (None, 50, 16), (0, 50, 64), (7, 1, 7)]
)
def test_prefill_cap(threshold: int | None, live: int, cap: int) -> None:
    limits = SchedulerLimits(
        max_num_seqs=16, max_num_batched_tokens=64, max_model_len=400, long_prefill_token_threshold=threshold
    )
    assert limits.prefill_cap(live) == cap


def test_a_decode_advances_beside_prompts_that_fill_the_budget() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8, long_prefill_token_threshold=0)
    scheduler.add(make_sequence("long", prompt=100))
    scheduler.add(make_sequence("short", prompt=1, max_tokens=20))
    run_step(scheduler)
    while "short" not in run_step(scheduler):
        pass
    for _ in range(5):
        assert run_step(scheduler)["short"] == 1


def test_admission_keeps_the_order_of_arrival() -> None:
    """The first in the queue does not fit beside the running one; the second would, but waits its turn."""
    scheduler = make_scheduler(blocks=10, block_size=4)
    scheduler.add(make_sequence("a", prompt=24, max_tokens=8))
    run_step(scheduler)
    scheduler.add(make_sequence("big", prompt=20))
    scheduler.add(make_sequence("small", prompt=2))
    assert run_step(scheduler) == {"a": 1}


def test_a_chunked_prompt_keeps_the_blocks_that_it_will_need() -> None:
    """Admitting on the first chunk alone would let two long prompts evict each other."""
    scheduler = make_scheduler(blocks=10, block_size=4, max_num_batched_tokens=16, long_prefill_token_threshold=8)
    scheduler.add(make_sequence("a", prompt=30))
    scheduler.add(make_sequence("b", prompt=20))
    while scheduler.has_work():
        run_step(scheduler)
    assert scheduler.preemptions_total == 0


def test_the_youngest_is_preempted_and_comes_back_first() -> None:
    scheduler = make_scheduler(blocks=4, block_size=4, max_num_seqs=2)
    old, young, waiting = (make_sequence(name, prompt=7, max_tokens=8) for name in ("old", "young", "waiting"))
    for sequence in (old, young, waiting):
        scheduler.add(sequence)
    order: list[str] = []
    while scheduler.has_work():
        order.extend(sorted(set(run_step(scheduler)) - set(order)))
    assert young.preemptions == 1
    assert old.preemptions == 0
    assert order == ["old", "young", "waiting"]
    assert all(sequence.finish_reason == "length" for sequence in (old, young, waiting))
    assert young.output_tokens == 8


def test_a_preempted_entry_gives_its_budget_back() -> None:
    """A young decode is scheduled first, then an old prefill takes its blocks within the same step."""
    scheduler = make_scheduler(blocks=5, block_size=4, max_num_batched_tokens=8, long_prefill_token_threshold=4)
    old, young = make_sequence("old", prompt=12, max_tokens=8), make_sequence("young", prompt=4, max_tokens=8)
    scheduler.add(old)
    scheduler.add(young)
    while scheduler.has_work():
        run_step(scheduler)
    assert (old.output_tokens, young.output_tokens) == (8, 8)
    assert scheduler.blocks.blocks_free == 5


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    scheduler = make_scheduler(blocks=5, block_size=4, max_model_len=400)
    with pytest.raises(RequestRefused) as refused:
        scheduler.add(make_sequence("a", prompt=15, max_tokens=6))
    assert str(refused.value) == (
        "prompt (15 tokens) plus max_tokens (6) is 21 tokens, this engine holds 20 per request: "
        "use max_tokens of at most 5"
    )
    with pytest.raises(RequestRefused, match="use a prompt of at most 19 tokens"):
        scheduler.add(make_sequence("b", prompt=20, max_tokens=1))
    assert scheduler.queue_depth == 0
    scheduler.add(make_sequence("c", prompt=15, max_tokens=5))


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestRefused, match="the prompt is empty"):
        make_scheduler().add(make_sequence("a", prompt=0))


def test_queue_bounds() -> None:
    scheduler = make_scheduler(max_num_queued_reqs=2)
    scheduler.add(make_sequence("a"))
    scheduler.add(make_sequence("b"))
    with pytest.raises(QueueFull, match="2 requests wait, the limit is 2") as full:
        scheduler.add(make_sequence("c"))
    assert full.value.reason == "queue_requests"
    run_step(scheduler)
    scheduler.add(make_sequence("d"))


def test_queue_bound_in_tokens_takes_one_long_prompt() -> None:
    scheduler = make_scheduler(max_num_queued_tokens=20)
    scheduler.add(make_sequence("long", prompt=100))
    with pytest.raises(QueueFull) as full:
        scheduler.add(make_sequence("b", prompt=1))
    assert full.value.reason == "queue_tokens"


def test_abort_frees_running_and_waiting() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add(make_sequence("running"))
    scheduler.add(make_sequence("waiting", prompt=9))
    run_step(scheduler)
    scheduler.abort("running")
    scheduler.abort("waiting")
    scheduler.abort("unknown")
    assert not scheduler.has_work()
    assert scheduler.tokens_queued == 0
    assert scheduler.blocks.blocks_active == 0


def test_end_and_stop_tokens() -> None:
    cases: tuple[tuple[dict[str, Any], int, str | None, int | None], ...] = (
        ({}, END_TOKEN, "stop", None),
        ({"ignore_eos": True}, END_TOKEN, None, None),
        ({"min_tokens": 2}, END_TOKEN, None, None),
        ({"stop_token_ids": (7,)}, 7, "stop", 7),
        ({"stop_token_ids": (7,)}, 6, None, None),
        ({"max_tokens": 1}, 6, "length", None),
        ({"max_tokens": 1}, END_TOKEN, "stop", None),
    )
    for sampling, token, reason, stop_token in cases:
        scheduler = make_scheduler()
        sequence = make_sequence("a", **sampling)
        scheduler.add(sequence)
        run_step(scheduler, token)
        assert (sequence.finish_reason, sequence.stop_token_id) == (reason, stop_token), sampling


def test_a_sequence_without_a_token_finishes_with_an_error() -> None:
    scheduler = make_scheduler()
    sequence = make_sequence("a")
    scheduler.add(sequence)
    step = scheduler.schedule(0.0)
    assert granted(step) == {"a": 4}
    assert scheduler.finish_step(step, {"a": None}) == [sequence]
    assert sequence.finish_reason == "error"
    assert scheduler.blocks.blocks_active == 0
