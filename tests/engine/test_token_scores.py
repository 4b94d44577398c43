import pytest
import torch

from pagefleet.engine.logprobs import LEAST_LOGPROB
from pagefleet.engine.token_scores import SampledScores, score
from tests.support.sequences import make_sequence

VOCABULARY = 30


def logits(rows: int) -> torch.Tensor:
    return 4 * torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(1))


def test_scores_follow_the_definition() -> None:
    rows = logits(3)
    expected = rows.log_softmax(-1)

    scores = score(rows, [0, 5, 29], [0, 2, 40])

    for row, token, top, scored in zip(expected, [0, 5, 29], [0, 2, VOCABULARY], scores, strict=True):
        assert scored.token_id == token
        assert scored.logprob == pytest.approx(float(row[token]), abs=1e-5)
        assert scored.rank == row.argsort(descending=True).tolist().index(token) + 1
        assert [other for other, _ in scored.top] == row.argsort(descending=True)[:top].tolist()
        assert [value for _, value in scored.top] == pytest.approx(sorted(row.tolist(), reverse=True)[:top], abs=1e-5)


def test_infinity_and_nan_become_the_least_logprob() -> None:
    rows = torch.zeros(2, 3)
    rows[0, 1] = -torch.inf
    rows[1] = torch.nan

    impossible, broken = score(rows, [1, 2], [3, 1])

    assert impossible.logprob == broken.logprob == LEAST_LOGPROB
    assert impossible.top[-1] == (1, LEAST_LOGPROB)


def test_raw_logits_are_scored_although_sampling_changes_them() -> None:
    rows = logits(3)
    raw = rows.clone()
    sequences = [make_sequence("a"), make_sequence("b", logprobs=2), make_sequence("c", logprobs=0)]
    scores = SampledScores(rows, sequences)
    rows.fill_(0.0)

    scores.record([1, 2, None])

    assert sequences[0].last_logprobs is None
    assert sequences[1].last_logprobs == score(raw[1:2], [2], [2])[0]
    assert sequences[2].last_logprobs is None, "a failed row has no token to score"
