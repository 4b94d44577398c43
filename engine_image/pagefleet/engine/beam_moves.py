"""Carry a beam search's decisions out: beams become forks of one another, in memory and in the queue.

The sequences of a search stay what they are, with their names and ranks. A beam that nobody continues takes over the
tokens and blocks of one that several continue; the first of those goes on as itself.
"""

from pagefleet.engine.batching_policies import BatchingPolicy
from pagefleet.engine.beams import BeamSearch, keep_or_replace
from pagefleet.engine.blocks import BlockManager
from pagefleet.engine.sequence import Sequence
from pagefleet.engine.waiting_queue import WaitingQueue


class BeamMoves:
    """Work on the scheduler's own sequences and blocks."""

    def __init__(
        self,
        running: dict[str, Sequence],
        waiting: WaitingQueue,
        blocks: BlockManager,
        batching: BatchingPolicy,
        max_num_seqs: int,
    ) -> None:
        self._running = running
        self._waiting = waiting
        self._blocks = blocks
        self._batching = batching
        self._max_num_seqs = max_num_seqs

    def advance(self, sequences: dict[int, Sequence], beams: BeamSearch) -> bool:
        """Let all beams go on by one token; False, and nothing is changed, when the search is over."""
        outputs = {index: sequence.token_ids[sequence.prompt_tokens :] for index, sequence in sequences.items()}
        continuations = beams.advance(outputs)
        if continuations is None:
            return False
        placed = [
            (index, continuations[position])
            for index, position in keep_or_replace([each.parent for each in continuations])
        ]
        for index, continuation in placed:
            if index != continuation.parent:
                self._replace(sequences[index], sequences[continuation.parent])
        for index, continuation in placed:
            self._append(sequences[index], continuation.token_id)
            beams.scores[index] = continuation.score
        beams.reported = {index: beams.reported_with(continuation) for index, continuation in placed}
        return True

    def _append(self, sequence: Sequence, token_id: int) -> None:
        is_waiting = self._waiting.remove(sequence.sequence_id) is not None  # the queue counts tokens
        sequence.token_ids.append(token_id)
        if is_waiting:
            self._waiting.add(sequence)

    def _replace(self, sequence: Sequence, parent: Sequence) -> None:
        """Make one beam a fork of another; it waits when that one has no blocks, or when no place is free."""
        was_running = self._waiting.remove(sequence.sequence_id) is None
        if was_running:
            del self._running[sequence.sequence_id]
            self._blocks.free(sequence.sequence_id)
        sequence.token_ids, sequence.block_hashes = list(parent.token_ids), list(parent.block_hashes)
        runs = parent.sequence_id in self._running and len(self._running) < self._max_num_seqs
        if runs:
            self._blocks.fork(parent.sequence_id, sequence.sequence_id)
            sequence.computed_tokens = parent.computed_tokens
            self._running[sequence.sequence_id] = sequence
        else:
            sequence.computed_tokens = 0
            self._waiting.add(sequence)
        self._batching.admitted(runs - was_running)


def end_beam(sequence: Sequence, beams: BeamSearch) -> None:
    """Turn a beam into the hypothesis of its number, or fail it with its search."""
    if beams.has_failed:
        sequence.finish_reason = "error"
        return
    hypothesis = beams.hypotheses[sequence.index]
    sequence.token_ids = sequence.token_ids[: sequence.prompt_tokens] + hypothesis.token_ids
    sequence.finish_reason = "stop" if hypothesis.is_ended else "length"
    last = hypothesis.token_ids[-1]
    sequence.stop_token_id = last if last in sequence.sampling.stop_token_ids else None
