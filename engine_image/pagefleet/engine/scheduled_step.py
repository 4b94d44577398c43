"""What one forward pass computes, as the scheduler tells the runner."""

from dataclasses import dataclass, field

from pagefleet.engine.blocks import BlockCopy
from pagefleet.engine.sequence import Sequence


@dataclass(slots=True)
class ScheduledSequence:
    """Give `tokens` tokens of the step, from position `first_position` on, to one sequence.

    Nobody changes it; a frozen dataclass takes three times as long to make, for each sequence of each step.
    """

    sequence: Sequence
    first_position: int
    tokens: int
    siblings: list[Sequence] = field(default_factory=list)
    """Forks that this step makes: they sample from the same row."""

    @property
    def sequences(self) -> list[Sequence]:
        """Return the sequence and its forks."""
        return [self.sequence, *self.siblings]

    @property
    def is_decode(self) -> bool:
        """Tell whether it computes one sampled token, and nothing of the prompt."""
        return self.tokens == 1 and self.first_position >= self.sequence.prompt_tokens

    @property
    def samples(self) -> bool:
        """Tell whether the step reaches the last known token and so samples the next one."""
        return self.first_position + self.tokens == len(self.sequence.token_ids)


@dataclass(slots=True)
class ScheduledStep:
    """List what one forward pass computes, and what it needs done to blocks before: first zeroes, then copies."""

    entries: list[ScheduledSequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    copies: dict[str, BlockCopy] = field(default_factory=dict)
    """By sequence."""
    blocks_to_zero: list[int] = field(default_factory=list)
    slots_to_zero: list[int] = field(default_factory=list)
    """Plain slots of a packed cache."""
    prefill_tokens: int = 0
    """Of its tokens, those of prompts and of what preemption made compute again."""
    decodes: int = 0
    """Sequences that compute the one token that they sampled last."""
    kv_tokens_read: int = 0
    """Tokens of these that were in the cache before."""
    leaves_prompts: bool = False
    """More of them wait or are left for later steps."""

    def count(self, entry: ScheduledSequence) -> None:
        """Add one of the entries, which nothing preempts any more, to the sums."""
        if entry.is_decode:
            self.decodes += 1
            self.kv_tokens_read += entry.first_position
        else:
            self.prefill_tokens += entry.tokens

    @property
    def tokens(self) -> int:
        """Count the tokens of the step."""
        return sum(entry.tokens for entry in self.entries)
