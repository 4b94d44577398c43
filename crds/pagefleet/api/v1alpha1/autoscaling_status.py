"""The autoscaler's latest decisions as `status` shows them."""

from typing import Annotated

from pydantic import Field

from pagefleet.api.base import NonNegativeInteger, Number, StatusModel, Timestamp

DECISIONS_KEPT = 10


class ScalingSignals(StatusModel):
    """What the autoscaler saw. Unknown is absent, never 0."""

    reporting_replicas: NonNegativeInteger | None = None
    """Replicas whose capacity report was fresh."""
    silent_replicas: NonNegativeInteger | None = None
    """Ready replicas whose last report is too old to be counted on, or that never reported."""
    age_seconds: Number | None = None
    """Age of the oldest report of a ready replica, in seconds."""
    requests_per_second: Number | None = None
    """Requests that arrived, over half a minute."""
    kv_occupancy: Number | None = None
    """Active over total KV-cache blocks of all reporting replicas, 0 to 1."""
    kv_percent: NonNegativeInteger | None = None
    """The same in whole percent, for the KV% column."""
    running: NonNegativeInteger | None = None
    """Sequences in running batches."""
    queue_depth: NonNegativeInteger | None = None
    """Requests not yet admitted."""
    queued_tokens: NonNegativeInteger | None = None
    """Prompt tokens of requests not yet admitted."""
    queue_age_seconds: Number | None = None
    """Age of the oldest request not yet admitted, in seconds."""
    missed_percent: Number | None = None
    """Share of first tokens or answers that missed their objective in the last half minute, whichever is more."""


class ScalingDecision(StatusModel):
    """One change of the number of replicas."""

    time: Timestamp
    """When it was decided."""
    from_replicas: NonNegativeInteger
    """Replicas before."""
    to_replicas: NonNegativeInteger
    """Replicas after."""
    reason: str
    """The signal that decided, one CamelCase word."""
    limited_by: str | None = None
    """The limit that held the number back, such as maxReplicas."""
    message: str | None = None
    """A sentence for people, with the numbers."""


class AutoscalingStatus(StatusModel):
    """What the autoscaler wants, and why."""

    mode: str | None = None
    """What it does with it: Off, Recommend, Active, or Conflict while another writer sets the replicas."""
    desired: NonNegativeInteger | None = None
    """Replicas that the load asks for within the limits; in mode Recommend nobody acts on it."""
    reason: str | None = None
    """The signal that decides, one CamelCase word."""
    limited_by: str | None = None
    """The limit that holds the number back, such as maxReplicas."""
    message: str | None = None
    """A sentence for people, with the numbers."""
    counterfactual: str | None = None
    """What it would be without the limit that holds it back, such as `6 without downWindow`."""
    forecast_requests_per_second: Number | None = None
    """Requests to be ready for at the end of a lead time."""
    replica_requests_per_second: Number | None = None
    """Requests that one replica serves within the objectives."""
    lead_time_seconds: Number | None = None
    """Time from a replica's creation until it serves."""
    conditions: tuple[str, ...] = ()
    """What people should know: StuckPending, Imbalanced, Flapping, SignalMissing, SloUnreachable, SloMissed,
    ScheduleIgnored, Conflict."""
    signals: ScalingSignals | None = None
    """What the autoscaler saw."""
    last_decisions: Annotated[tuple[ScalingDecision, ...], Field(max_length=DECISIONS_KEPT)] = ()
    """The latest changes, the newest first."""
