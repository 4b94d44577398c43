"""KV slots over time: what tokens fill, what our blocks hold for them, and what a cache without pages reserves.

Pure. A slot holds keys and values of one token. A cache without pages gives each running sequence one contiguous piece
for the most tokens it may ever have (arXiv 2309.06180, section 3): the context length when nothing else is known, or,
by an oracle that knows each output's length in advance, exactly its final length.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SlotSample:
    """Count slots after one step."""

    elapsed_s: float
    filled: int
    """Tokens whose keys and values are there."""
    held: int
    """Slots of the blocks that running sequences hold."""
    reserved_context: int
    """Slots that pieces of the model's context length would take for the same sequences."""
    reserved_oracle: int
    """Slots that pieces of each sequence's own final length would take."""


@dataclass(frozen=True)
class Waste:
    """Hold shares of reserved slots that stay empty, over all steps: 0 is perfect."""

    paged: float
    context: float
    oracle: float


def waste_of(samples: Sequence[SlotSample]) -> Waste:
    """Return the empty slots of all samples as shares of the reserved ones."""
    filled = sum(sample.filled for sample in samples)

    def empty_share(reserved: int) -> float:
        return 1 - filled / reserved if reserved else 0.0

    return Waste(
        paged=empty_share(sum(sample.held for sample in samples)),
        context=empty_share(sum(sample.reserved_context for sample in samples)),
        oracle=empty_share(sum(sample.reserved_oracle for sample in samples)),
    )
