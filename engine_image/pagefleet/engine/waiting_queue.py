"""The sequences that wait to be admitted, always in order: whoever comes back from preemption finds its old place."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from pagefleet.engine.sequence import Sequence

by_rank = attrgetter("rank")


class WaitingQueue:
    """Hold sequences by rank; a rank is unique and never changes."""

    def __init__(self) -> None:
        self._ordered: list[Sequence] = []
        self._by_id: dict[str, Sequence] = {}
        self.tokens = 0
        """Known tokens of all that wait."""

    def __len__(self) -> int:
        return len(self._ordered)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._ordered)

    def __contains__(self, sequence_id: str) -> bool:
        return sequence_id in self._by_id

    @property
    def first(self) -> Sequence | None:
        """Return the one to admit next."""
        return self._ordered[0] if self._ordered else None

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence at its rank."""
        insort(self._ordered, sequence, key=by_rank)
        self._by_id[sequence.sequence_id] = sequence
        self.tokens += len(sequence.token_ids)

    def remove(self, sequence_id: str) -> Sequence | None:
        """Take out a sequence, wherever it stands; None when it is not here."""
        sequence = self._by_id.pop(sequence_id, None)
        if sequence is not None:
            del self._ordered[bisect_left(self._ordered, sequence.rank, key=by_rank)]
            self.tokens -= len(sequence.token_ids)
        return sequence

    def check_integrity(self) -> str | None:
        """Return what is inconsistent, or None."""
        ranks = [sequence.rank for sequence in self._ordered]
        if ranks != sorted(set(ranks)):
            return "the waiting sequences are out of order"
        if {sequence.sequence_id: sequence for sequence in self._ordered} != self._by_id:
            return "the queue's index differs from the queue"
        if self.tokens != sum(len(sequence.token_ids) for sequence in self._ordered):
            return f"{self.tokens} queued tokens are counted, the queue holds another number"
        return None
