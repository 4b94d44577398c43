"""What the operator and the autoscaler report about a service."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from pagefleet.api.base import NonNegativeInteger, ReplicaCount, StatusModel
from pagefleet.api.conditions import Condition
from pagefleet.api.v1alpha1.autoscaling_status import AutoscalingStatus
from pagefleet.api.v1alpha1.plan_status import PlanStatus, TuningStatus


class ServicePhase(StrEnum):
    """One word for people. Programs read conditions: a phase can't say two things at once.

    Pending      accepted, no replica runs yet (no node, no accelerator, refused plan)
    Starting     the first replica's container starts
    Downloading  the first replica fetches the model
    Loading      the first replica loads weights and measures memory
    Ready        all replicas answer
    Updating     replicas answer while a new revision takes over
    Degraded     some replicas answer, fewer than asked for
    Draining     the service is being deleted or stopped, requests in flight finish
    Idle         scaled to zero, wakes at the next request
    Stopped      `spec.replicas` is 0
    Failed       no replica answers, and waiting won't help
    """

    PENDING = "Pending"
    STARTING = "Starting"
    DOWNLOADING = "Downloading"
    LOADING = "Loading"
    READY = "Ready"
    UPDATING = "Updating"
    DEGRADED = "Degraded"
    DRAINING = "Draining"
    IDLE = "Idle"
    STOPPED = "Stopped"
    FAILED = "Failed"


class RevisionStatus(StatusModel):
    """Names of the revisions that matter."""

    current: str | None = None
    """The revision that last became fully ready: where a rollback goes."""
    updated: str | None = None
    """The revision of the present spec; equals `current` when no rollout is under way."""


class InferenceServiceStatus(StatusModel):
    """What is observed about a service."""

    observed_generation: NonNegativeInteger | None = None
    """The `metadata.generation` that this status is about."""
    phase: ServicePhase | None = None
    """One word for people, the most advanced replica's while none is ready."""
    reason: str | None = None
    """One CamelCase word that says why, from the Ready condition."""
    message: str | None = None
    """A sentence for people, such as `Downloading 63 %`."""
    url: str | None = None
    """Base of the OpenAI API inside the cluster, such as http://chat.default.svc:8000/v1."""
    replicas: ReplicaCount | None = None
    """Replicas that exist, of all revisions."""
    ready_replicas: ReplicaCount | None = None
    """Replicas that answer requests."""
    replicas_text: str | None = None
    """Replicas that answer and replicas asked for, such as 2/3, for the Replicas column."""
    selector: str | None = None
    """Label selector of the pods as text, for the scale subresource."""
    conditions: Annotated[
        tuple[Condition, ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = ()
    """Observations, one of each type."""
    revisions: RevisionStatus = Field(default=RevisionStatus())
    """Revision that serves, and revision that takes over."""
    plan: PlanStatus | None = None
    """How the model fits the accelerator, predicted and measured."""
    tuning: TuningStatus | None = None
    """What tuning found, with its evidence."""
    autoscaling: AutoscalingStatus | None = None
    """What the autoscaler decided, and why. The autoscaler is its only writer."""
