"""Beam search as pure decisions: which beams go on with which tokens, which hypotheses are kept, when it is over.

The rules are transformers' `_beam_search`: of all continuations the best `(1 + end tokens) * width`, at least
`2 * width`, are looked at; the best `width` that do not end go on, and what ends among the first `width` becomes a
hypothesis with the score sum(log p) / length ** length_penalty. Sums are float32, as there.
"""

from dataclasses import dataclass, field

import numpy as np

from pagefleet.engine.logprobs import TokenLogprobs
from pagefleet.engine.sampling_params import SamplingParameters

NEVER = np.float32(-1e9)
"""The score of a beam that is a copy of another one, as the first step has them."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """List the likeliest next tokens of one beam, best first, with their log-probabilities."""

    token_ids: list[int]
    log_probabilities: list[float]
    reported: list[TokenLogprobs] = field(default_factory=list)
    """What is reported of each, for a request that asked for log-probabilities; empty for others."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """Let a beam go on as beam `parent` with one token more."""

    parent: int
    token_id: int
    score: np.float32
    reported: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Hold a finished output."""

    token_ids: list[int]
    score: np.float32
    is_ended: bool
    """By an end token, not by its length."""
    reported: list[TokenLogprobs]
    """Scores of the tokens, for a request that asked; empty for others."""


@dataclass(slots=True)
class BeamSearch:
    """Hold what the beams of one request share."""

    sampling: SamplingParameters
    end_token_ids: frozenset[int]
    scores: list[np.float32]
    """Sums of log-probabilities by beam."""
    reported: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    """By beam: scores of its tokens, for a request that asked."""
    candidates: dict[int, Candidates] = field(default_factory=dict)
    """By beam: those that have computed their next tokens and wait for the others."""
    hypotheses: list[Hypothesis] = field(default_factory=list)
    """At most `width`, best first."""
    has_failed: bool = False
    """A beam computed something not finite."""
    unwanted: set[int] = field(default_factory=set)
    """Choices that nobody wants any more."""

    @classmethod
    def begin(cls, sampling: SamplingParameters, eos_token_ids: frozenset[int]) -> "BeamSearch":
        """Begin with one beam and its copies."""
        ends = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else eos_token_ids)
        scores = [np.float32(0)] + [NEVER] * (sampling.beam_width - 1)
        return cls(sampling=sampling, end_token_ids=ends, scores=scores)

    @property
    def width(self) -> int:
        """Count the beams."""
        return self.sampling.beam_width

    @property
    def candidates_kept(self) -> int:
        """Return how many continuations are looked at; no beam needs to name more."""
        return max(2, 1 + len(self.end_token_ids)) * self.width

    @property
    def is_ready(self) -> bool:
        """Tell whether every beam has its candidates."""
        return len(self.candidates) == self.width

    def advance(self, outputs: dict[int, list[int]]) -> list[Continuation] | None:
        """Use up the candidates and return one continuation per beam, best first; None when the search is over.

        `outputs` are the tokens that each beam has generated, all of one length.
        """
        length = len(outputs[0]) + 1
        best = self._best_continuations()
        is_last = length >= self.sampling.max_tokens
        ends = [is_last or each.token_id in self.end_token_ids for each in best]
        self._keep_hypotheses(best[: self.width], ends, outputs, length)
        going_on = [each for each, is_end in zip(best, ends, strict=True) if not is_end][: self.width]
        self.candidates.clear()
        if len(going_on) < self.width or self._is_over(going_on[0].score, length):
            return None
        return going_on

    def reported_with(self, continuation: Continuation) -> list[TokenLogprobs]:
        """Return the scores of all tokens of a beam that goes on so."""
        before = self.reported.get(continuation.parent, [])
        return before if continuation.reported is None else [*before, continuation.reported]

    def _best_continuations(self) -> list[Continuation]:
        continuations = [
            Continuation(
                beam,
                token_id,
                np.float32(log_probability) + self.scores[beam],
                candidates.reported[position] if candidates.reported else None,
            )
            for beam in range(self.width)
            for candidates in (self.candidates[beam],)
            for position, (token_id, log_probability) in enumerate(
                zip(candidates.token_ids, candidates.log_probabilities, strict=True)
            )
        ]
        continuations.sort(key=lambda each: -each.score)
        return continuations[: self.candidates_kept]

    def _keep_hypotheses(
        self, first: list[Continuation], ends: list[bool], outputs: dict[int, list[int]], length: int
    ) -> None:
        penalty = np.float32(length**self.sampling.length_penalty)
        self.hypotheses += [
            Hypothesis(
                token_ids=[*outputs[each.parent], each.token_id],
                score=each.score / penalty,
                is_ended=each.token_id in self.end_token_ids,
                reported=self.reported_with(each),
            )
            for each, is_end in zip(first, ends, strict=False)
            if is_end
        ]
        self.hypotheses.sort(key=lambda each: -each.score)
        del self.hypotheses[self.width :]

    def _is_over(self, best_running_score: np.float32, length: int) -> bool:
        """Tell whether no beam can still improve the hypotheses, or improvement is not asked for."""
        if len(self.hypotheses) < self.width:
            return False
        if self.sampling.early_stopping is True:
            return True
        length_penalty = self.sampling.length_penalty
        looks_ahead = self.sampling.early_stopping == "never" and length_penalty > 0
        hypothetical_length = self.sampling.max_tokens if looks_ahead else length
        best_possible = best_running_score / np.float32(hypothetical_length**length_penalty)
        return bool(best_possible <= self.hypotheses[-1].score)


def keep_or_replace(parents: list[int]) -> list[tuple[int, int]]:
    """Return (beam, position in `parents`) pairs: a beam goes on as itself where it can, the rest take unused ones."""
    first = {parent: position for position, parent in reversed(list(enumerate(parents)))}
    unused = iter(beam for beam in range(len(parents)) if beam not in first)
    return [
        (parent if first[parent] == position else next(unused), position) for position, parent in enumerate(parents)
    ]
