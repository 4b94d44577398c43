"""Compute log-probabilities, for the rows alone that asked for them and without a vocabulary-wide softmax."""

from collections.abc import Callable

import torch

from pagefleet.engine.logprobs import LEAST_LOGPROB, TokenLogprobs
from pagefleet.engine.scheduled_step import ScheduledSequence
from pagefleet.engine.sequence import Sequence

PIECE_ROWS = 32
"""Prompt positions scored at once: a whole chunk's logits would take more memory than its activations."""


def score(logits: torch.Tensor, token_ids: list[int], tops: list[int]) -> list[TokenLogprobs]:
    """Score one token per row of raw float32 [rows, vocabulary] logits, with `tops` likeliest tokens each."""
    chosen = torch.tensor(token_ids, device=logits.device)[:, None]
    chosen_logits = logits.gather(1, chosen)
    log_sums = logits.logsumexp(-1, keepdim=True)
    logprobs = (chosen_logits - log_sums)[:, 0].tolist()
    ranks = (1 + (logits > chosen_logits).sum(-1)).tolist()
    best: list[list[tuple[int, float]]] = [[] for _ in token_ids]
    if largest := min(max(tops), logits.shape[-1]):
        values, indices = torch.topk(logits, largest, dim=-1)
        rows = zip(indices.tolist(), (values - log_sums).tolist(), tops, strict=True)
        best = [list(zip(ids[:top], values[:top], strict=True)) for ids, values, top in rows]
    return [
        TokenLogprobs(token, _finite(logprob), rank, tuple((other, _finite(value)) for other, value in likeliest))
        for token, logprob, rank, likeliest in zip(token_ids, logprobs, ranks, best, strict=True)
    ]


class SampledScores:
    """Keep the raw logits of the rows that asked, because sampling changes them in place."""

    def __init__(self, logits: torch.Tensor, sequences: list[Sequence]) -> None:
        asked = [(row, sequence) for row, sequence in enumerate(sequences) if sequence.sampling.logprobs is not None]
        self._asked = asked
        self._logits = logits[[row for row, _ in asked]] if asked else None

    def record(self, tokens: list[int | None]) -> None:
        """Give each sequence that asked the score of its sampled token; one that failed gets none."""
        if self._logits is None:
            return
        kept = [(index, row, sequence) for index, (row, sequence) in enumerate(self._asked) if tokens[row] is not None]
        if not kept:
            return
        scores = score(
            self._logits[[index for index, _, _ in kept]],
            [token for _, row, _ in kept if (token := tokens[row]) is not None],
            [sequence.sampling.logprobs or 0 for _, _, sequence in kept],
        )
        for (_, _, sequence), scored in zip(kept, scores, strict=True):
            sequence.last_logprobs = scored


def score_prompt(
    entry: ScheduledSequence,
    hidden: torch.Tensor,
    first_row: int,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Score the prompt tokens that this chunk's states predict, if the request asked for them.

    The chunk begins at `first_row` of the step's [tokens, hidden] states. One that preemption has computed again finds
    its scores there and adds none.
    """
    sequence = entry.sequence
    top = sequence.sampling.prompt_logprobs
    if top is None:
        return
    first = max(entry.first_position, len(sequence.prompt_logprobs))
    end = min(entry.first_position + entry.tokens, sequence.prompt_tokens - 1)
    for start in range(first, end, PIECE_ROWS):
        stop = min(start + PIECE_ROWS, end)
        logits = logits_of(hidden[first_row + start - entry.first_position : first_row + stop - entry.first_position])
        # Position i predicts token i + 1.
        sequence.prompt_logprobs += score(logits, sequence.token_ids[start + 1 : stop + 1], [top] * (stop - start))


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB) if logprob == logprob else LEAST_LOGPROB
