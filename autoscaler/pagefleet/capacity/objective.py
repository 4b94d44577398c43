"""What a plan is to make the best of, where several would do."""

from enum import StrEnum

LATENCY_SLACK = 2.0
"""With the objective latency and no objective in time, tokens may take so many times as long as for a lone request."""
MEMORY_MARGIN = 1.05
"""Predictions of memory are right within 5 %: so much more is given than the least that is predicted."""


class Objective(StrEnum):
    """Name what to improve, in the words of `spec.tuning.objective`."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    COST = "cost"
    """Of one accelerator, that is its throughput."""
    MEMORY = "memory"
    """The fewest bytes that serve the load; a sequence of the longest length fits as without it."""
