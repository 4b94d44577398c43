"""Choose the next token of every row without sorting the vocabulary.

Sorting 64 x 32,000 logits takes 150 ms on a core. Instead a token is drawn by inverse CDF and accepted when the mass
above it is less than top-p; if not, everything at most as likely is dropped and the draw repeated (the "pivot" method
of FlashInfer). Every draw uses its own number from a counter hash of (seed, position, attempt), so it is the same
whatever else is in the batch and however often the sequence was preempted.
"""

import torch

from pagefleet.engine.kernels.cpu.sampling import DrawParameters, argmax, can_draw, draw
from pagefleet.engine.logit_rules import apply_rules, has_rules
from pagefleet.engine.sequence import Sequence

MASK_64 = (1 << 64) - 1


def uniform(seed: int, position: int, attempt: int) -> float:
    """Return a number in [0, 1) that depends on nothing but the arguments (SplitMix64's finaliser)."""
    state = 0
    for value in (seed, position, attempt):
        state = ((state ^ value) & MASK_64) + 0x9E3779B97F4A7C15 & MASK_64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK_64
        state = (state ^ state >> 27) * 0x94D049BB133111EB & MASK_64
        state ^= state >> 31
    return (state >> 11) / (1 << 53)


def sample(logits: torch.Tensor, sequences: list[Sequence], eos_token_ids: frozenset[int]) -> list[int | None]:
    """Choose a token for each row of float32 [rows, vocabulary] logits, which are changed in place.

    A row without a finite best logit gives None: its sequence cannot go on.
    """
    for index, sequence in enumerate(sequences):
        if has_rules(sequence):
            apply_rules(logits[index], sequence, eos_token_ids)
    tokens = argmax(logits)
    drawn = [i for i, sequence in enumerate(sequences) if tokens[i] is not None and not sequence.sampling.is_greedy]
    if drawn:
        chosen = _draw(logits[drawn], [sequences[i] for i in drawn])
        for i, token in zip(drawn, chosen, strict=True):
            tokens[i] = token
    return tokens


def _draw(logits: torch.Tensor, sequences: list[Sequence]) -> list[int]:
    if not can_draw(logits):
        return draw_in_torch(logits, sequences)
    return draw(
        logits,
        [
            DrawParameters(p.temperature, p.top_p, p.min_p, p.top_k, p.seed, sequence.output_tokens)
            for sequence in sequences
            for p in (sequence.sampling,)
        ],
    )


def draw_in_torch(logits: torch.Tensor, sequences: list[Sequence]) -> list[int]:
    """Draw a token for each row of [rows, vocabulary] logits, on any device."""
    parameters = [sequence.sampling for sequence in sequences]
    temperatures = logits.new_tensor([p.temperature for p in parameters])[:, None]
    weights = torch.exp((logits - logits.max(dim=-1, keepdim=True).values) / temperatures)  # the best weighs 1
    min_p = logits.new_tensor([p.min_p for p in parameters])[:, None]
    weights.masked_fill_(weights < min_p, 0)
    _keep_top_k(weights, [p.top_k for p in parameters])
    nucleus = logits.new_tensor([p.top_p for p in parameters], dtype=torch.float64) * weights.sum(
        -1, dtype=torch.float64
    )

    chosen = [0] * len(sequences)
    pending = list(range(len(sequences)))
    pivots = weights.new_zeros(len(sequences), 1)
    attempt = 0
    while pending:
        candidates = weights[pending]
        candidates.masked_fill_(candidates <= pivots[pending], 0)
        uniforms = [uniform(sequences[i].sampling.seed, sequences[i].output_tokens, attempt) for i in pending]
        drawn = _inverse_cdf(candidates, uniforms)
        drawn_weights = candidates.gather(1, drawn)
        mass_above = candidates.masked_fill(candidates <= drawn_weights, 0).sum(-1, dtype=torch.float64)
        is_accepted = (mass_above < nucleus[pending]).tolist()
        pivots[pending] = drawn_weights
        for i, token in zip(pending, drawn[:, 0].tolist(), strict=True):
            chosen[i] = token
        pending = [i for i, accepted in zip(pending, is_accepted, strict=True) if not accepted]
        attempt += 1
    return chosen


def _keep_top_k(weights: torch.Tensor, top_ks: list[int]) -> None:
    """Zero what is less likely than the k-th; ties with it stay, as in transformers."""
    limited = [i for i, k in enumerate(top_ks) if 0 < k < weights.shape[-1]]
    if not limited:
        return
    largest = max(top_ks[i] for i in limited)
    kept = weights[limited]
    ranks = weights.new_tensor([top_ks[i] - 1 for i in limited], dtype=torch.int64)[:, None]
    smallest_kept = torch.topk(kept, largest, dim=-1).values.gather(1, ranks)
    weights[limited] = kept.masked_fill(kept < smallest_kept, 0)


def _inverse_cdf(weights: torch.Tensor, uniforms: list[float]) -> torch.Tensor:
    """Return [rows, 1] token ids: the first whose cumulative weight exceeds the row's share of the total."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    targets = cumulative[:, -1:] * cumulative.new_tensor(uniforms)[:, None]
    index = torch.searchsorted(cumulative, targets, right=True)
    # Rounding may carry the target to the total itself; then the likeliest token, which always has weight, is meant.
    return torch.where(index < weights.shape[-1], index, weights.argmax(-1, keepdim=True))
