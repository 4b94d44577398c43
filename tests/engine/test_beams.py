"""Beam search without a model: decisions, and what happens when a search does not end well."""

from typing import Any

import numpy as np
import pytest

from pagefleet.engine.beams import BeamSearch, Candidates, keep_or_replace
from pagefleet.engine.errors import RequestRefused
from pagefleet.engine.sampling_params import SamplingParameters, check_sampling_parameters
from pagefleet.engine.scheduler import Scheduler
from tests.support.sequences import END_TOKEN, make_scheduler, make_sequence

WIDTH = 3


def sampling(**fields: Any) -> SamplingParameters:
    return SamplingParameters(**{"max_tokens": 4, "use_beam_search": True, "beam_width": WIDTH, **fields})


def begin(**fields: Any) -> BeamSearch:
    """Begin a search and make its first step, after which the beams hold tokens 1, 2 and 3."""
    beams = BeamSearch.begin(sampling(**fields), frozenset({END_TOKEN}))
    same = Candidates([1, 2, 3, 4, 5, 6], [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0])
    beams.candidates = dict.fromkeys(range(WIDTH), same)
    continuations = beams.advance({index: [] for index in range(WIDTH)})
    assert continuations is not None
    assert [(each.parent, each.token_id) for each in continuations] == [(0, 1), (0, 2), (0, 3)]
    beams.scores = [each.score for each in continuations]
    return beams


def test_the_best_sums_go_on() -> None:
    beams = begin()
    rest = [-20.0] * 5
    beams.candidates = {
        0: Candidates([7, 2, 3, 4, 5, 6], [-3.0, *rest]),
        1: Candidates([8, 7, 3, 4, 5, 6], [-0.5, -0.7, *rest[1:]]),
        2: Candidates([6, 2, 3, 4, 5, 1], [-9.0, *rest]),
    }
    continuations = beams.advance({0: [1], 1: [2], 2: [3]})
    assert continuations is not None
    assert [(each.parent, each.token_id) for each in continuations] == [(1, 8), (1, 7), (0, 7)]
    assert [float(each.score) for each in continuations] == pytest.approx([-2.5, -2.7, -4.0])


def test_only_what_ends_among_the_first_is_kept() -> None:
    beams = begin(length_penalty=2.0)
    beams.candidates = {
        0: Candidates([7, END_TOKEN, 3, 4, 5, 6], [-0.1, -0.2, -9.0, -9.0, -9.0, -9.0]),
        1: Candidates([8, END_TOKEN, 3, 4, 5, 6], [-0.3, -0.6, -9.0, -9.0, -9.0, -9.0]),
        2: Candidates([6, 2, 3, 4, 5, 1], [-9.0] * 6),
    }
    continuations = beams.advance({0: [1], 1: [2], 2: [3]})
    assert continuations is not None
    assert [each.token_ids for each in beams.hypotheses] == [[1, END_TOKEN]], "the other one is the fourth"
    assert beams.hypotheses[0].score == np.float32(-1.2) / np.float32(4)
    assert END_TOKEN not in [each.token_id for each in continuations]


@pytest.mark.parametrize(
    ("parents", "placed"),
    [
        ([0, 1, 2], [(0, 0), (1, 1), (2, 2)]),
        ([2, 2, 2], [(2, 0), (0, 1), (1, 2)]),
        ([1, 0, 1], [(1, 0), (0, 1), (2, 2)]),
    ],
)
def test_beams_stay_where_they_can(parents: list[int], placed: list[tuple[int, int]]) -> None:
    assert keep_or_replace(parents) == placed


@pytest.mark.parametrize(
    "fields", [{"n": 2}, {"beam_width": 0}, {"length_penalty": float("nan")}, {"frequency_penalty": 1.0}], ids=str
)
def test_what_has_no_meaning_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused) as refused:
        check_sampling_parameters(sampling(**fields), vocabulary_size=10)
    assert refused.value.parameter == next(iter(fields))


def test_a_search_that_is_too_wide_is_refused() -> None:
    with pytest.raises(RequestRefused, match=r"beam_width is 5, this engine runs 4 .* at most 4"):
        make_scheduler(max_num_seqs=4).add(make_sequence("a", use_beam_search=True, beam_width=5))


def run(scheduler: Scheduler, *, fails: str = "") -> list[tuple[str, str | None]]:
    """Make one step in which each beam likes the tokens after its own number, and return who ends how."""
    step = scheduler.schedule(0.0)
    sampled: dict[str, int | None] = {}
    for entry in step.entries:
        for sequence in entry.sequences:
            if entry.samples and sequence.beams is not None:
                likes = [(sequence.index + token) % 8 for token in range(6)]
                sequence.beams.candidates[sequence.index] = Candidates(likes, [-1.0 - token for token in range(6)])
                sampled[sequence.sequence_id] = None if sequence.sequence_id == fails else 0
    finished = scheduler.finish_step(step, sampled)
    scheduler.check_integrity()
    return [(sequence.sequence_id, sequence.finish_reason) for sequence in finished]


def searching(**options: Any) -> Scheduler:
    scheduler = make_scheduler(**options)
    scheduler.add(make_sequence("a", prompt=5, max_tokens=6, use_beam_search=True, beam_width=WIDTH))
    return scheduler


def test_a_search_ends_with_all_its_outputs() -> None:
    scheduler = searching()
    assert [run(scheduler) for _ in range(5)] == [[]] * 5
    assert run(scheduler) == [("a", "length"), ("a#1", "length"), ("a#2", "length")]
    assert scheduler.blocks.blocks_free == scheduler.blocks.blocks_total
    assert not scheduler.has_work()


@pytest.mark.parametrize("steps", [0, 2])
def test_a_beam_that_fails_ends_the_search(steps: int) -> None:
    scheduler = searching()
    for _ in range(steps):
        run(scheduler)
    ended = run(scheduler, fails="a")
    assert sorted(ended) == [("a", "error"), ("a#1", "error"), ("a#2", "error")]
    assert scheduler.blocks.blocks_free == scheduler.blocks.blocks_total
    assert not scheduler.has_work()


def test_a_search_ends_early_when_nobody_wants_any_of_it() -> None:
    scheduler = searching()
    run(scheduler)
    scheduler.abort_choice("a", 1)
    scheduler.abort_choice("a", 1)
    scheduler.abort_choice("a", 0)
    assert run(scheduler) == []
    assert scheduler.has_work()
    scheduler.abort_choice("a", 2)
    assert not scheduler.has_work()
    assert scheduler.blocks.blocks_free == scheduler.blocks.blocks_total


def test_searches_that_wait_for_one_another_make_room() -> None:
    """Three searches whose beams fill memory and places: parked ones give way, and all end."""
    scheduler = make_scheduler(blocks=7, block_size=2, max_num_seqs=5)
    for name in "abc":
        scheduler.add(make_sequence(name, prompt=5, max_tokens=6, use_beam_search=True, beam_width=WIDTH))
    ended, most_parked = [], 0
    while scheduler.has_work():
        ended += run(scheduler)
        most_parked = max(most_parked, scheduler.waiting_by_reason["beams"])
    assert sorted(ended) == [(name + choice, "length") for name in "abc" for choice in ("", "#1", "#2")]
    assert scheduler.preemptions_total > 0
    assert most_parked > 0, "preempted beams that know their next tokens do not ask for blocks"
    assert scheduler.blocks.blocks_free == 7
