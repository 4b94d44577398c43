"""The autoscaler's latest decisions as `status` shows them."""

from typing import Annotated

from pydantic import Field

from pagefleet.api.base import NonNegativeInteger, Number, StatusModel, Timestamp

DECISIONS_KEPT = 10


class ScalingSignals(StatusModel):
    """What the autoscaler saw. Unknown is absent, never 0."""

    reporting_replicas: NonNegativeInteger | None = None
    """Replicas whose capacity report was fresh."""
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
    ttft_seconds: Number | None = None
    """Time to first token that the window saw, in seconds."""
    itl_seconds: Number | None = None
    """Inter-token latency that the window saw, in seconds."""


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

    desired: NonNegativeInteger | None = None
    """Replicas that the load asks for within the limits; in mode Recommend nobody acts on it."""
    reason: str | None = None
    """The signal that decides, one CamelCase word."""
    limited_by: str | None = None
    """The limit that holds the number back, such as maxReplicas."""
    message: str | None = None
    """A sentence for people, with the numbers."""
    signals: ScalingSignals | None = None
    """What the autoscaler saw."""
    last_decisions: Annotated[tuple[ScalingDecision, ...], Field(max_length=DECISIONS_KEPT)] = ()
    """The latest changes, the newest first."""
