"""The likeliest next tokens of each beam, from the logits that the model computed for it."""

import torch

from pagefleet.engine.beams import Candidates
from pagefleet.engine.sequence import Sequence
from pagefleet.engine.token_scores import score


def propose_continuations(logits: torch.Tensor, sequences: list[Sequence]) -> None:
    """Give the beams among `sequences` their candidates from float32 [rows, vocabulary] logits, left as they are."""
    for row, sequence in enumerate(sequences):
        if (beams := sequence.beams) is None:
            continue
        log_probabilities = torch.log_softmax(logits[row], dim=-1)
        if sequence.output_tokens < beams.sampling.min_tokens:
            log_probabilities[list(beams.end_token_ids)] = -torch.inf
        best = torch.topk(log_probabilities, min(beams.candidates_kept, len(log_probabilities)))
        token_ids: list[int] = best.indices.tolist()
        top = beams.sampling.logprobs
        reported = [] if top is None else score(logits[[row] * len(token_ids)], token_ids, [top] * len(token_ids))
        beams.candidates[sequence.index] = Candidates(token_ids, best.values.tolist(), reported)
