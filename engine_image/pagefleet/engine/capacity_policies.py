"""How much of a sequence's future admission must find room for. Pure; the policies differ in nothing else.

- `on-demand`: what is known. Most sequences run at once, and now and then one is preempted and computed again.
- `ratio`: beside that a share of what it may still generate, which falls while nothing is preempted and rises when
  something is. (SGLang's new-token ratio.)
- `no-evict`: all that it may generate. Nothing is ever preempted, and most of the room stays empty.
"""

from math import ceil
from typing import Literal, Protocol

from pagefleet.engine.sequence import Sequence

CapacityPolicyName = Literal["on-demand", "ratio", "no-evict"]

HIGHEST_RATIO, LOWEST_RATIO = 0.7, 0.1
RATIO_DECAY = (HIGHEST_RATIO - LOWEST_RATIO) / 600
"""From the highest to the lowest in 600 steps, as long as one sequence usually runs."""


class CapacityPolicy(Protocol):
    """Decide what admission reserves."""

    never_evicts: bool

    def reserved_tokens(self, sequence: Sequence) -> int:
        """Return the length that the sequence must find room for, from its known tokens to the most it can reach."""

    def after_step(self, *, has_preempted: bool) -> None:
        """Learn from a step."""


class OnDemand:
    """Reserve what is known."""

    never_evicts = False

    def reserved_tokens(self, sequence: Sequence) -> int:
        """Return the known tokens."""
        return len(sequence.token_ids)

    def after_step(self, *, has_preempted: bool) -> None:
        """Learn nothing."""


class Ratio:
    """Reserve a share of the rest, learnt from preemptions."""

    never_evicts = False

    def __init__(self) -> None:
        self.ratio = HIGHEST_RATIO

    def reserved_tokens(self, sequence: Sequence) -> int:
        """Return the known tokens and the share of those that may come."""
        known = len(sequence.token_ids)
        return known + ceil(self.ratio * (sequence.most_tokens - known))

    def after_step(self, *, has_preempted: bool) -> None:
        """Fall slowly, rise at once."""
        self.ratio = HIGHEST_RATIO if has_preempted else max(LOWEST_RATIO, self.ratio - RATIO_DECAY)


class NoEvict:
    """Reserve everything."""

    never_evicts = True

    def reserved_tokens(self, sequence: Sequence) -> int:
        """Return the longest that the sequence can become."""
        return sequence.most_tokens

    def after_step(self, *, has_preempted: bool) -> None:
        """Learn nothing."""


def capacity_policy(name: CapacityPolicyName) -> CapacityPolicy:
    """Make the policy of this name."""
    policies: dict[CapacityPolicyName, CapacityPolicy] = {
        "on-demand": OnDemand(),
        "ratio": Ratio(),
        "no-evict": NoEvict(),
    }
    return policies[name]
