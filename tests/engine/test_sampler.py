"""The sampler against the distribution that its parameters describe, computed by sorting."""

from typing import Any

import pytest
import torch

from pagefleet.engine.sampler import sample, uniform
from pagefleet.engine.sequence import Sequence
from tests.support.sequences import END_TOKEN, make_sequence

VOCABULARY = 40
DRAWS = 4000
EOS = frozenset({END_TOKEN})


def logits(rows: int = 1) -> torch.Tensor:
    return (3 * torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(3))).repeat(rows, 1)


def sequence(seed: int = 0, *, outputs: list[int] | None = None, **sampling: Any) -> Sequence:
    made = make_sequence("s", prompt=3, max_tokens=100, seed=seed, **sampling)
    for token in outputs or []:
        made.append(token, frozenset())
    return made


def expected_distribution(row: torch.Tensor, **sampling: Any) -> torch.Tensor:
    """Return the probabilities by the definitions, with a full sort."""
    probabilities = torch.softmax(row / sampling.get("temperature", 1.0), dim=-1).double()
    probabilities[probabilities < sampling.get("min_p", 0.0) * probabilities.max()] = 0
    order = probabilities.argsort(descending=True)
    kept = probabilities[order]
    if sampling.get("top_k"):
        kept[sampling["top_k"] :] = 0
    kept /= kept.sum()
    above = kept.cumsum(0) - kept
    kept[above >= sampling.get("top_p", 1.0)] = 0
    result = torch.zeros_like(probabilities)
    result[order] = kept / kept.sum()
    return result


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0, "top_p": 0.9},
        {"top_k": 5},
        {"top_k": 1},
        {"top_k": 1000},
        {"top_p": 0.3},
        {"top_p": 0.0001},
        {"min_p": 0.1},
        {"temperature": 1.5, "top_k": 10, "top_p": 0.8, "min_p": 0.02},
    ],
)
def test_draws_follow_the_distribution(sampling: dict[str, Any]) -> None:
    tokens = sample(logits(DRAWS), [sequence(seed, **sampling) for seed in range(DRAWS)], EOS)
    counts = torch.bincount(torch.tensor(tokens), minlength=VOCABULARY).double() / DRAWS
    expected = expected_distribution(logits()[0], **sampling)
    assert not counts[expected == 0].any(), "nothing outside the support"
    # The total variation of n draws from k outcomes is below sqrt(k / n) / 2 on average.
    assert (counts - expected).abs().sum() / 2 < (VOCABULARY / DRAWS) ** 0.5


def test_a_seed_draws_the_same_whatever_is_beside_it() -> None:
    alone = sample(logits(), [sequence(11, temperature=1.3, top_p=0.9)], EOS)
    others = [sequence(1, temperature=0.0), sequence(2, top_k=3), sequence(11, temperature=1.3, top_p=0.9), sequence(4)]
    assert sample(logits(4), others, EOS)[2] == alone[0]


def test_uniform_is_flat_and_depends_on_every_argument() -> None:
    values = [uniform(seed, position, 0) for seed in range(50) for position in range(50)]
    assert all(0 <= value < 1 for value in values)
    assert abs(sum(values) / len(values) - 0.5) < 0.02
    assert len({uniform(1, 2, 0), uniform(2, 1, 0), uniform(1, 2, 1), uniform(-1, 2, 0)}) == 4


def test_greedy_takes_the_best() -> None:
    assert sample(logits(), [sequence(temperature=0.0)], EOS) == [int(logits().argmax())]


def test_logit_bias_and_penalties() -> None:
    best = int(logits().argmax())
    second = int(logits()[0].argsort(descending=True)[1])
    assert sample(logits(), [sequence(temperature=0.0, logit_bias={7: 100.0})], EOS) == [7]
    assert sample(logits(), [sequence(temperature=0.0, logit_bias={best: -100.0})], EOS) == [second]
    penalties: list[dict[str, Any]] = [
        {"presence_penalty": 2.0},
        {"frequency_penalty": 2.0},
        {"repetition_penalty": 10.0},
    ]
    for penalty in penalties:
        row = torch.zeros(1, VOCABULARY)
        row[0, 3], row[0, 8] = 1.0, 0.5
        assert sample(row, [sequence(temperature=0.0, outputs=[3], **penalty)], EOS) == [8], penalty


def test_frequency_counts_and_presence_does_not() -> None:
    cases: list[tuple[dict[str, Any], int]] = [({"frequency_penalty": 0.5}, 8), ({"presence_penalty": 0.5}, 3)]
    for penalty, expected in cases:
        row = torch.zeros(1, VOCABULARY)
        row[0, 3], row[0, 8] = 2.0, 1.0
        assert sample(row, [sequence(temperature=0.0, outputs=[3, 3, 3], **penalty)], EOS) == [expected]


def test_repetition_penalty_sees_the_prompt() -> None:
    row = torch.zeros(1, VOCABULARY)
    row[0, 5], row[0, 8] = 2.0, 1.5  # 5 is the prompt's token
    assert sample(row, [sequence(temperature=0.0, repetition_penalty=2.0)], EOS) == [8]


def test_min_tokens_hides_end_and_stop_tokens() -> None:
    row = torch.zeros(1, VOCABULARY)
    row[0, END_TOKEN], row[0, 7], row[0, 8] = 3.0, 2.0, 1.0
    blocked = sequence(temperature=0.0, min_tokens=2, stop_token_ids=(7,), outputs=[1])
    assert sample(row.clone(), [blocked], EOS) == [8]
    freed = sequence(temperature=0.0, min_tokens=2, stop_token_ids=(7,), outputs=[1, 1])
    assert sample(row.clone(), [freed], EOS) == [END_TOKEN]


def test_a_row_that_is_not_finite_gives_none_and_leaves_the_others_alone() -> None:
    rows = logits(3)
    rows[1] = torch.nan
    tokens = sample(rows, [sequence(temperature=0.0) for _ in range(3)], EOS)
    assert tokens == [int(logits().argmax()), None, int(logits().argmax())]
