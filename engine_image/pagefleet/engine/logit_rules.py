"""Apply to a row of logits what its request asks of single tokens: biases, penalties, and tokens that may not come.

Numbers change first and tokens are ruled out last, so that no bias brings a forbidden token back.
"""

import torch

from pagefleet.engine.sequence import Sequence


def has_rules(sequence: Sequence) -> bool:
    """Tell whether `apply_rules` would change the row of the sequence's next token."""
    parameters = sequence.sampling
    return (
        parameters.needs_token_counts
        or sequence.output_tokens < parameters.min_tokens
        or bool(parameters.logit_bias or parameters.bad_words)
        or parameters.allowed_token_ids is not None
    )


def apply_rules(row: torch.Tensor, sequence: Sequence, eos_token_ids: frozenset[int]) -> None:
    """Change one row of float32 [vocabulary] logits in place."""
    parameters = sequence.sampling
    if parameters.logit_bias:
        row[list(parameters.logit_bias)] += row.new_tensor(list(parameters.logit_bias.values()))
    if parameters.needs_token_counts:
        _penalise(row, sequence)
    if sequence.output_tokens < parameters.min_tokens:
        row[list({*eos_token_ids, *parameters.stop_token_ids})] = -torch.inf
    if parameters.allowed_token_ids is not None:
        allowed = list(parameters.allowed_token_ids)
        kept = row[allowed]
        row.fill_(-torch.inf)
        row[allowed] = kept
    if parameters.bad_words and (forbidden := _completions(sequence)):
        values = row[forbidden]
        row[forbidden] = -torch.inf
        # The request's check keeps single tokens from ruling out everything; sequences that would, give way.
        if row.max() == -torch.inf:
            row[forbidden] = values


def _penalise(row: torch.Tensor, sequence: Sequence) -> None:
    parameters = sequence.sampling
    if parameters.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(sequence.token_ids)), device=row.device)
        values = row[seen]
        penalty = parameters.repetition_penalty
        row[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if sequence.output_counts:
        counts = row.new_tensor(list(sequence.output_counts.values()))
        row[list(sequence.output_counts)] -= parameters.frequency_penalty * counts + parameters.presence_penalty


def _completions(sequence: Sequence) -> list[int]:
    """Return the tokens that would complete a bad word behind the output so far."""
    last_tokens: set[int] = set()
    output_tokens = sequence.output_tokens
    for word in sequence.sampling.bad_words:
        begun = len(word) - 1
        if begun == 0 or (begun <= output_tokens and tuple(sequence.token_ids[-begun:]) == word[:-1]):
            last_tokens.add(word[-1])
    return sorted(last_tokens)
