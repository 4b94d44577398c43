"""What the scheduler makes of the prefix cache: who gets a hit, who waits, and what is counted."""

from tests.support.sequences import granted, make_scheduler, make_sequence, run_step

PROMPT = list(range(100, 120))


def test_a_finished_prompt_is_not_computed_again() -> None:
    scheduler = make_scheduler(has_prefix_cache=True)
    scheduler.add(make_sequence("a", PROMPT, 1))
    assert run_step(scheduler) == {"a": 20}
    again, longer = make_sequence("again", PROMPT, 1), make_sequence("longer", [*PROMPT, 1, 2], 1)
    scheduler.add(again)
    scheduler.add(longer)
    assert run_step(scheduler) == {"again": 4, "longer": 2}, "the last block of an equal prompt is computed again"
    assert (again.cached_tokens, longer.cached_tokens) == (16, 20)
    assert scheduler.prefix_query_tokens_total == 20 + 20 + 22
    assert scheduler.prefix_hit_tokens_total == 36


def test_output_is_shared_as_well() -> None:
    """The next turn of a chat begins with the whole last one."""
    scheduler = make_scheduler(has_prefix_cache=True)
    first = make_sequence("first", PROMPT, 9)
    scheduler.add(first)
    while scheduler.has_work():
        run_step(scheduler)
    scheduler.add(make_sequence("second", [*first.token_ids, 7, 8, 9]))
    assert run_step(scheduler) == {"second": 4}


def test_active_never_counts_cached() -> None:
    scheduler = make_scheduler(has_prefix_cache=True, blocks=10)
    scheduler.add(make_sequence("a", PROMPT, 1))
    run_step(scheduler)
    blocks = scheduler.blocks
    assert (blocks.blocks_active, blocks.blocks_cached, blocks.blocks_free) == (0, 5, 5)
    assert blocks.tokens_active == 0


def test_cached_blocks_give_way() -> None:
    scheduler = make_scheduler(has_prefix_cache=True, blocks=6)
    scheduler.add(make_sequence("a", PROMPT, 1))
    run_step(scheduler)
    other = make_sequence("other", list(range(200, 222)), 2)
    scheduler.add(other)
    while scheduler.has_work():
        run_step(scheduler)
    assert other.finish_reason == "length"
    assert other.preemptions == 0


def test_a_hit_counts_the_blocks_that_it_takes() -> None:
    """Cached blocks look free, but a hit takes them: here they are all that is left."""
    scheduler = make_scheduler(has_prefix_cache=True, blocks=10)
    scheduler.add(make_sequence("cached", PROMPT, 1))
    run_step(scheduler)
    scheduler.add(make_sequence("runs", list(range(200, 217)), 4))
    run_step(scheduler)
    scheduler.add(make_sequence("hit", [*PROMPT, 1], 2))
    assert run_step(scheduler) == {"runs": 1}, "five cached blocks and one more do not fit beside five"


def test_equal_prompts_wait_for_the_one_that_computes() -> None:
    scheduler = make_scheduler(has_prefix_cache=True)
    for name in ("a", "b", "c"):
        scheduler.add(make_sequence(name, [*PROMPT, ord(name)], 3))
    scheduler.add(make_sequence("other", list(range(200, 210)), 2))
    assert run_step(scheduler) == {"a": 16, "other": 10}, "one that shares nothing passes"
    assert scheduler.queue_depth == 2
    assert run_step(scheduler) == {"a": 5, "other": 1}
    assert run_step(scheduler) == {"a": 1, "b": 1, "c": 1}
    assert scheduler.blocks.blocks_active == 5 + 3


def test_a_prompt_that_waits_for_an_aborted_one_goes_on_itself() -> None:
    scheduler = make_scheduler(has_prefix_cache=True, max_num_batched_tokens=16, long_prefill_token_threshold=8)
    scheduler.add(make_sequence("a", PROMPT, 2))
    scheduler.add(make_sequence("b", PROMPT, 2))
    assert run_step(scheduler) == {"a": 8}
    scheduler.abort("a")
    assert run_step(scheduler) == {"b": 8}
    assert scheduler.prefix_hit_tokens_total == 8, "what the aborted one had computed is there"


def test_no_one_waits_across_salts() -> None:
    scheduler = make_scheduler(has_prefix_cache=True)
    scheduler.add(make_sequence("a", PROMPT, 2, cache_salt="one"))
    scheduler.add(make_sequence("b", PROMPT, 2, cache_salt="two"))
    assert run_step(scheduler) == {"a": 20, "b": 20}
    scheduler.add(make_sequence("c", PROMPT, 2, cache_salt="three"))
    assert run_step(scheduler) == {"a": 1, "b": 1, "c": 20}


def test_a_sequence_may_ask_to_compute_everything() -> None:
    scheduler = make_scheduler(has_prefix_cache=True)
    scheduler.add(make_sequence("a", PROMPT, 1))
    run_step(scheduler)
    sequence = make_sequence("b", PROMPT, 1)
    sequence.skips_prefix_cache = True
    scheduler.add(sequence)
    assert run_step(scheduler) == {"b": 20}
    assert scheduler.prefix_query_tokens_total == 20, "no look-up, no query"


def test_a_preempted_sequence_finds_its_own_blocks() -> None:
    scheduler = make_scheduler(has_prefix_cache=True, blocks=8, max_num_seqs=2)
    old = make_sequence("old", list(range(100, 112)), 8)
    young = make_sequence("young", list(range(200, 212)), 8)
    scheduler.add(old)
    scheduler.add(young)
    computed = 0
    while scheduler.has_work():
        computed += sum(run_step(scheduler).values())
    assert young.preemptions == 1
    assert computed < 2 * (12 + 7) + 12, "without the cache the whole young one would be computed again"
    assert scheduler.prefix_query_tokens_total == 24, "a resume is no second query"
    assert young.cached_tokens == 0


def test_a_waiting_hit_holds_nothing() -> None:
    """A look at the cache that does not lead to admission must not keep blocks."""
    scheduler = make_scheduler(has_prefix_cache=True, blocks=8, max_num_seqs=1)
    scheduler.add(make_sequence("a", PROMPT, 1))
    run_step(scheduler)
    scheduler.add(make_sequence("runs", list(range(200, 204)), 20))
    run_step(scheduler)
    scheduler.add(make_sequence("waits", PROMPT, 2))
    for _ in range(3):
        run_step(scheduler)
    scheduler.abort("waits")
    scheduler.check_integrity()
    assert scheduler.blocks.blocks_active == 2


def test_what_failed_is_never_found() -> None:
    scheduler = make_scheduler(has_prefix_cache=True, max_num_batched_tokens=8)
    scheduler.add(make_sequence("a", PROMPT, 2))
    run_step(scheduler)
    step = scheduler.schedule(1.0)
    assert granted(step) == {"a": 8}
    (failed,) = scheduler.finish_step(step, {"a": None})
    assert failed.finish_reason == "error", "a chunk that is not finite ends the sequence before it samples"
    assert len(scheduler.blocks.cache) == 0
    scheduler.check_integrity()
    scheduler.add(make_sequence("b", PROMPT, 2))
    step = scheduler.schedule(2.0)
    assert granted(step) == {"b": 8}
    assert sorted(step.blocks_to_zero) == sorted(scheduler.blocks.table("b"))
