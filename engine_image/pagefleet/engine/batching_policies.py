"""When a new sequence may join those that run: the same engine batches in three ways, so that they compare honestly.

- `continuous`: in every step.
- `static`: when all of the last batch have finished, as many as wait then.
- `dynamic`: likewise, but a batch that is not full waits for more until its oldest has waited long enough.

Pure: the time is an argument.
"""

from typing import Literal, Protocol

BatchingPolicyName = Literal["continuous", "dynamic", "static"]


class BatchingPolicy(Protocol):
    """Count the places that are open to sequences that wait."""

    def open_places(self, *, running: int, waiting: int, oldest_age_s: float) -> int:
        """Return how many may be admitted in this step."""

    def admitted(self, sequences: int) -> None:
        """Take the places of sequences that were admitted; a negative number gives those of preempted ones back."""


class Continuous:
    """Open to all."""

    def open_places(self, *, running: int, waiting: int, oldest_age_s: float) -> int:  # noqa: ARG002 - the protocol's
        """Return as many as wait."""
        return waiting

    def admitted(self, sequences: int) -> None:
        """Keep no count."""


class Batches:
    """Run one batch to its end before the next; without a timeout a batch takes what waits at once."""

    def __init__(self, *, most: int, timeout_s: float | None) -> None:
        self._most = most
        self._timeout_s = timeout_s
        self._open = 0

    def open_places(self, *, running: int, waiting: int, oldest_age_s: float) -> int:
        """Return the places of the batch that are not taken; form a new batch when none of the last one is left."""
        is_ripe = self._timeout_s is None or waiting >= self._most or oldest_age_s >= self._timeout_s
        if running == 0 and is_ripe:
            self._open = min(waiting, self._most)
        return self._open

    def admitted(self, sequences: int) -> None:
        """Take or give back places."""
        self._open -= sequences


def batching_policy(name: BatchingPolicyName, *, most: int, timeout_s: float) -> BatchingPolicy:
    """Make the policy of this name for batches of at most `most` sequences."""
    if name == "continuous":
        return Continuous()
    return Batches(most=most, timeout_s=timeout_s if name == "dynamic" else None)
