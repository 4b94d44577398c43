"""What the operator knows of a service's objects, as slim records: a plan needs a few fields, never a body."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pagefleet.api.capacity import CapacityReport
from pagefleet.capacity import ModelFacts
from pagefleet.operator.plan.tuned_knobs import NO_KNOBS, TunedKnobs


@dataclass(frozen=True, slots=True)
class Child:
    """An object that belongs to a service, whatever its kind."""

    kind: str
    name: str
    uid: str
    intent_hash: str
    owned_fields: str
    """See `ownership.owned_fields`."""
    owner_uids: tuple[str, ...] = ()
    is_terminating: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaSetRecord:
    """The pods of one revision, as their controller counts them."""

    name: str
    uid: str
    revision: str
    replicas: int
    """Wanted (`spec.replicas`)."""
    observed_replicas: int
    """Existing, without those that terminate (`status.replicas`)."""
    ready_replicas: int
    has_settled: bool
    """The controller has seen the newest spec, so that the counts are about it."""
    failure: str | None = None
    """Why pods can't be created, such as a quota."""
    is_terminating: bool = False
    draining: int = 0
    """Replicas that were chosen to leave: they exist and hold what they hold, but are not among those that answer."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a container ended."""

    exit_code: int
    reason: str
    message: str
    """Last lines of its log, which the kubelet keeps after a failure."""


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One replica."""

    name: str
    uid: str
    revision: str
    phase: str
    created: datetime
    ip: str | None = None
    node: str | None = None
    is_ready: bool = False
    is_terminating: bool = False
    unschedulable: str | None = None
    """The scheduler's sentence."""
    waiting_reason: str | None = None
    waiting_message: str = ""
    """Why a container does not run: image, configuration, back-off."""
    ended: Ended | None = None
    """How a container last ended, while none of its successors became ready."""
    restarts: int = 0
    is_running: bool = False
    """The engine's container runs, so that its admin port may answer."""
    traffic: str | None = None
    """Its label of traffic; None for a pod that an older operator made."""
    drain_began: datetime | None = None
    """When it was chosen to leave."""
    deletion_cost: int = 0
    """Of two alike the ReplicaSet's controller removes the pod that costs less."""
    grace_s: float = 30.0
    """Time that it gets to end by itself (`terminationGracePeriodSeconds`)."""


@dataclass(frozen=True, slots=True)
class RevisionRecord:
    """One stored revision: the pinned template and where it came from."""

    revision: str
    name: str
    number: int
    """Counts the revisions of a service."""
    spec_hash: str
    """Hash of what the user wrote; the same for an adopted template."""
    operator_version: str
    template: str
    """The pod template as JSON text, as it was rendered."""
    knobs: TunedKnobs = NO_KNOBS
    """What the planner chose for it."""
    created: datetime | None = None


@dataclass(frozen=True, slots=True)
class Accelerators:
    """The accelerators of all nodes that a pod may use, of one resource."""

    allocatable: int
    memory_bytes: int | None = None
    """Memory of the smallest one, from the nodes' labels."""
    product: str | None = None
    """What the nodes' labels call them, where all are of one kind."""


@dataclass(frozen=True, slots=True)
class ApplyFailure:
    """An object that the API server refused."""

    kind: str
    name: str
    is_invalid: bool
    """The object itself is wrong, so that trying again won't help."""
    message: str


@dataclass(frozen=True, slots=True)
class Progress:
    """What a replica that starts says of itself, and for how long it has said so."""

    report: CapacityReport
    unchanged_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What an engine said to the question that it is being asked. Unknown is None, never 0."""

    is_draining: bool | None = None
    """None while it has not answered."""
    in_flight: int | None = None
    cached_blocks: int | None = None
    unanswered: int = 0
    """Questions since its last answer."""


@dataclass(frozen=True, slots=True)
class ModelKnowledge:
    """What is known of a model: its facts, or why there are none, or that the answer is on its way."""

    facts: ModelFacts | None = None
    obstacle: str = ""
    """Why there are no facts."""
    pending_s: float = 0.0
    """Seconds for which the answer is worth waiting for; 0 where it is there, or nobody should wait."""
    retry_s: float | None = None
    """Seconds after which asking again may bring more."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The world of one service at one moment."""

    children: Mapping[tuple[str, str], Child] = field(default_factory=dict)
    """By kind and name."""
    replica_sets: tuple[ReplicaSetRecord, ...] = ()
    pods: tuple[PodRecord, ...] = ()
    revisions: tuple[RevisionRecord, ...] = ()
    progress: Mapping[str, Progress] = field(default_factory=dict)
    """By pod uid: what engines that start answer."""
    drains: Mapping[str, DrainReport] = field(default_factory=dict)
    """By pod uid: what engines answer that leave, or that may be chosen to."""
    accelerators: Accelerators | None = None
    """Of the service's resource; None while nodes are not known."""
    model: ModelKnowledge = ModelKnowledge(obstacle="its model was not looked up")
    failures: tuple[ApplyFailure, ...] = ()
    has_service_monitors: bool = False
    has_inference_pools: bool = False
