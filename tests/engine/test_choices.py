"""Several choices of one prompt: forked once the prompt is computed, then sequences of their own."""

import pytest

from pagefleet.engine.errors import RequestRefused
from pagefleet.engine.scheduler import Scheduler
from tests.support.sequences import make_scheduler, make_sequence, run_step


def run_to_end(scheduler: Scheduler) -> int:
    computed = 0
    while scheduler.has_work():
        computed += sum(run_step(scheduler).values())
    return computed


@pytest.mark.parametrize("has_prefix_cache", [False, True])
@pytest.mark.parametrize("prompt", [1, 3, 4, 30])
def test_the_prompt_is_computed_once_and_held_once(prompt: int, has_prefix_cache: bool) -> None:
    scheduler = make_scheduler(has_prefix_cache=has_prefix_cache)
    scheduler.add(make_sequence("a", prompt, 5, n=8))
    assert run_step(scheduler) == {"a": prompt}
    assert scheduler.blocks.blocks_active == -(-prompt // 4), "as many blocks as one choice at the first token"
    assert [sequence.output_tokens for sequence in scheduler.sequences()] == [1] * 8
    step = run_step(scheduler)
    assert step == {"a": 1} | {f"a#{index}": 1 for index in range(1, 8)}
    assert scheduler.blocks.blocks_active == prompt // 4 + 8
    assert run_to_end(scheduler) == 3 * 8


def test_each_choice_draws_from_its_own_seed() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", 3, 5, n=3, seed=40))
    run_step(scheduler)
    assert [(sequence.index, sequence.sampling.seed) for sequence in scheduler.sequences()] == [
        (0, 40),
        (1, 41),
        (2, 42),
    ]


def test_a_choice_ends_alone() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", 3, 5, n=3))
    run_step(scheduler)
    scheduler.abort_choice("a", 1)
    assert run_step(scheduler) == {"a": 1, "a#2": 1}
    scheduler.abort_choice("a", 0)
    assert run_step(scheduler) == {"a#2": 1}
    assert (scheduler.running, scheduler.queue_depth) == (1, 0)


def test_aborting_the_request_ends_all_choices() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", 3, 5, n=3))
    run_step(scheduler)
    scheduler.abort("a")
    assert not scheduler.has_work()
    assert scheduler.blocks.blocks_active == 0


def test_choices_may_go_before_they_begin() -> None:
    scheduler = make_scheduler()
    for name, gone in (("a", [0]), ("b", [1]), ("c", [0, 1, 2])):
        scheduler.add(make_sequence(name, 3, 2, n=3))
        for index in gone:
            scheduler.abort_choice(name, index)
    run_step(scheduler)
    assert {sequence.sequence_id for sequence in scheduler.sequences()} == {"a#1", "a#2", "b", "b#2"}
    run_to_end(scheduler)


def test_requests_are_counted_once() -> None:
    scheduler = make_scheduler(max_num_seqs=8)
    scheduler.add(make_sequence("a", 3, 5, n=5))
    scheduler.add(make_sequence("b", 3, 5, n=5))
    assert (scheduler.running, scheduler.queue_depth) == (0, 2)
    run_step(scheduler)
    assert (scheduler.running, scheduler.queue_depth) == (1, 1), "five more choices do not fit into eight places"


def test_more_choices_than_places_are_refused() -> None:
    with pytest.raises(RequestRefused, match="n is 9, this engine runs 8 sequences at once: use n of at most 8"):
        make_scheduler(max_num_seqs=8).add(make_sequence("a", n=9))


def test_choices_are_preempted_one_by_one() -> None:
    scheduler = make_scheduler(blocks=6)
    scheduler.add(make_sequence("a", 6, 14, n=4))
    run_step(scheduler)
    choices = scheduler.sequences()
    run_to_end(scheduler)
    assert [choice.output_tokens for choice in choices] == [14] * 4
    assert choices[0].preemptions == 0
    assert sum(choice.preemptions for choice in choices) == scheduler.preemptions_total > 0


def test_a_prompt_that_fails_ends_every_choice() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=16)
    scheduler.add(make_sequence("a", 20, 5, n=3))
    finished = scheduler.finish_step(scheduler.schedule(0.0), {"a": None})
    assert [(sequence.index, sequence.finish_reason) for sequence in finished] == [(i, "error") for i in range(3)]
    assert not scheduler.has_work()
    scheduler.check_integrity()
