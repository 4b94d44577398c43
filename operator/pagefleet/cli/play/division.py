"""How many replicas of autoscaled services this machine's memory holds. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a service asks of the machine. Bytes are None where the planner cannot read the model."""

    replicas: int
    """Most replicas that the user allows, or the fixed number."""
    is_scaled: bool
    least_bytes: int | None = None
    """What one replica cannot do without."""
    usable_bytes: int | None = None
    """What all replicas of the service may use, were they alone."""


def divide(needs: Sequence[Need]) -> list[int]:
    """Return the most replicas of each service; fixed numbers stay, and a scaled service may always have one.

    The machine is divided into equal shares, so the hungriest replica sets how many shares there can be.
    """
    granted = [min(need.replicas, 1) if need.is_scaled else need.replicas for need in needs]
    shares = most_shares(needs)
    while True:
        before = sum(granted)
        for place, need in enumerate(needs):
            if granted[place] < need.replicas and (shares is None or sum(granted) < shares):
                granted[place] += 1
        if sum(granted) == before:
            return granted


def most_shares(needs: Sequence[Need]) -> int | None:
    """Return into how many shares the machine can be divided so that each holds a replica; None is not known."""
    known = [need.usable_bytes // need.least_bytes for need in needs if need.usable_bytes and need.least_bytes]
    return min(known, default=None)
