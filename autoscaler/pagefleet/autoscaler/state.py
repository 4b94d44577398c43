"""What one decision leaves for the next. Plain values, so that a log can hold it and replay can go on from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from pagefleet.autoscaler.snapshot import Reading
from pagefleet.capacity.step_time import StepTime


class Totals(NamedTuple):
    """Sums over all replicas since the first decision, at one moment."""

    time_s: float
    arrivals: float = 0.0
    admitted: float = 0.0
    finished: float = 0.0
    prompt_tokens: float = 0.0
    prefix_hit_tokens: float = 0.0
    finished_output_tokens: float = 0.0
    preemptions: float = 0.0
    first_tokens: float = 0.0
    late_first_tokens: float = 0.0
    slow_answers: float = 0.0


class Rates(NamedTuple):
    """Arrivals per second at one moment, over 30, 60 and 120 s."""

    time_s: float
    short: float
    middle: float
    long: float


class StepsSeen(NamedTuple):
    """Steps of one kind, summed over reports."""

    time_s: float
    """When such steps were last seen."""
    steps: float
    prefill_tokens: float
    kv_tokens: float
    """Tokens in the cache that decoding sequences read, summed over steps."""
    sequences: float
    """Decoding sequences, summed over steps."""
    step_s: float
    """Their time in all."""


class Want(NamedTuple):
    """Replicas that a decision would have kept: what it wanted before any damping, and the margin of a fall."""

    time_s: float
    replicas: int


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything that is remembered."""

    began_s: float | None = None
    """Time of the first decision."""
    readings: Mapping[str, Reading] = field(default_factory=dict)
    """The latest of each replica, to count from."""
    totals: tuple[Totals, ...] = ()
    rates: tuple[Rates, ...] = ()
    growths: tuple[tuple[float, float], ...] = ()
    """(time, growth that followed within a lead time)."""
    wants: tuple[Want, ...] = ()
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    hit_share: float = 0.0
    time_scale: float = 1.0
    """Measured step time over predicted, learned from steps."""
    steps_seen: tuple[StepsSeen, ...] = ()
    """One entry per kind of step, where the plan has no step time."""
    learned_step: StepTime | None = None
    """Terms fitted to `steps_seen`."""
    learned_s: float = float("-inf")
    corrector: float = 1.0
    """Factor on the time of a request while the objective is missed although the load is below the planned share."""
    asked_s: float | None = None
    """When the service was last seen with a request, or first seen at all."""
    scaled_up_s: float = float("-inf")
    scaled_down_s: float = float("-inf")
    guarded_s: float = float("-inf")
    guarded_share: float = 0.0
    """Share of missed objectives when the guard last added a replica."""
    guards_in_vain: int = 0
    """How often in a row what the guard added has not helped."""
    reversals_s: tuple[float, ...] = ()
    """Times at which the direction changed."""
    was_up: bool | None = None
    imbalanced_ticks: int = 0
    lead_times_s: tuple[float, ...] = ()
    ready_names: frozenset[str] = frozenset()
    pending_since_s: Mapping[str, float] = field(default_factory=dict)
    """When each replica that is on its way was first seen so."""

    def changed(self, **fields: Any) -> Self:
        """Return a copy with other values in some fields.

        As `dataclasses.replace`, at a tenth of its time: a decision is a dozen small changes, for each service.
        """
        if not fields.keys() <= self.__dict__.keys():
            raise TypeError(f"State has no field {', '.join(sorted(fields.keys() - self.__dict__.keys()))}")
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, **fields)
        return copy
