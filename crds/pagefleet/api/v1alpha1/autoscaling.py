"""How many replicas run, and what decides it."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from pagefleet.api.base import ApiModel, Boolean, Fraction, PositiveInteger, ReplicaCount
from pagefleet.api.cel import Rule, section_rules, text
from pagefleet.api.quantity import Duration, duration_s
from pagefleet.api.v1alpha1.autoscaling_schedule import MOST_ENTRIES, ScheduleEntry


class AutoscalingMode(StrEnum):
    """Off leaves `spec.replicas` to the user, an HPA or KEDA; Recommend only reports; Active sets it."""

    OFF = "Off"
    RECOMMEND = "Recommend"
    ACTIVE = "Active"


class SloSpec(ApiModel):
    """Latency that users should see; the autoscaler adds replicas before it is missed."""

    ttft: Duration | None = None
    """Time to first token, from a request's arrival, such as 2s."""
    itl: Duration | None = None
    """Inter-token latency: the time between two tokens of one answer, such as 100ms."""

    @property
    def ttft_s(self) -> float | None:
        """Time to first token in seconds, or None where there is no goal."""
        return None if self.ttft is None else duration_s(self.ttft)

    @property
    def itl_s(self) -> float | None:
        """Inter-token latency in seconds, or None where there is no goal."""
        return None if self.itl is None else duration_s(self.itl)


class ScalingTargets(ApiModel):
    """Load of one replica that the autoscaler steers towards."""

    kv_occupancy: Fraction = 0.80
    """Share of KV-cache blocks held by live sequences. The rest absorbs bursts while a new replica loads."""
    queue_depth: PositiveInteger = 4
    """Requests that wait in one replica."""


class ScaleToZeroSpec(ApiModel):
    """Stop all replicas of an idle service."""

    idle: Duration = "10m"
    """Time without any request after which the last replica stops, such as 10m."""

    @property
    def idle_s(self) -> float:
        """Idle time in seconds."""
        return duration_s(self.idle)


_BOUNDS_RULE = Rule(
    "self.minReplicas <= self.maxReplicas",
    text(
        "minReplicas is %d, more than maxReplicas %d; write maxReplicas: %d or more",
        "self.minReplicas",
        "self.maxReplicas",
        "self.minReplicas",
    ),
)
_SCHEDULE_RULE = Rule(
    "!has(self.schedule) || self.schedule.all(entry, entry.minReplicas <= self.maxReplicas)",
    text(
        "schedule has minReplicas %d, more than maxReplicas %d; write maxReplicas: %d or more",
        "self.schedule.map(entry, entry.minReplicas).max()",
        "self.maxReplicas",
        "self.schedule.map(entry, entry.minReplicas).max()",
    ),
)


class AutoscalingSpec(ApiModel):
    """How the autoscaler sets the number of replicas. Without this section `spec.replicas` stays as written."""

    model_config = ConfigDict(json_schema_extra=section_rules(_BOUNDS_RULE, _SCHEDULE_RULE))

    mode: AutoscalingMode = AutoscalingMode.ACTIVE
    """Off, Recommend or Active. YAML reads a bare Off as false: write it in quotes."""
    min_replicas: PositiveInteger = 1
    """Fewest replicas of a service that is in use. Zero comes from `scaleToZero`."""
    max_replicas: PositiveInteger = 1
    """Most replicas."""
    slo: SloSpec = Field(default=SloSpec())
    """Latency that users should see."""
    targets: ScalingTargets = Field(default=ScalingTargets())
    """Load of one replica to steer towards."""
    spare_replicas: ReplicaCount = 0
    """Replicas to keep beyond what the load asks for, so that a surge finds them ready."""
    schedule: Annotated[tuple[ScheduleEntry, ...], Field(max_length=MOST_ENTRIES)] = ()
    """Times with more than `minReplicas`, for surges that are known beforehand; of several at once the most counts."""
    pause_scale_up: Boolean = False
    """Add no replicas, whatever the load; the decision is still reported."""
    pause_scale_down: Boolean = False
    """Take no replicas away, whatever the load; the decision is still reported."""
    scale_down_window: Duration = "5m"
    """Time for which fewer replicas must be enough before some leave, such as 5m; at least twice what a start takes."""
    scale_to_zero: ScaleToZeroSpec | None = None
    """Stop all replicas of an idle service. Left out: the last replicas stay."""

    @property
    def scale_down_window_s(self) -> float:
        """Scale-down window in seconds."""
        return duration_s(self.scale_down_window)

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"minReplicas is {self.min_replicas}, more than maxReplicas {self.max_replicas}; "
                f"write maxReplicas: {self.min_replicas} or more"
            )
        return self

    @model_validator(mode="after")
    def _schedule_fits(self) -> Self:
        most = max((entry.min_replicas for entry in self.schedule), default=0)
        if most > self.max_replicas:
            raise ValueError(
                f"schedule has minReplicas {most}, more than maxReplicas {self.max_replicas}; "
                f"write maxReplicas: {most} or more"
            )
        return self
