"""What a service's status says: conditions, one phase, one reason with its sentence, counts and names."""

from dataclasses import dataclass
from datetime import datetime

from pagefleet.api.capacity import EnginePhase
from pagefleet.api.conditions import (
    AVAILABLE,
    PLAN_ACCEPTED,
    PROGRESSING,
    READY,
    UP_TO_DATE,
    Condition,
    ConditionStatus,
    Readiness,
    find_condition,
    readiness,
    set_condition,
)
from pagefleet.api.labels import label_selector_text, service_selector
from pagefleet.api.resources import SERVICES
from pagefleet.api.v1alpha1 import (
    InferenceService,
    InferenceServiceStatus,
    PlanFootprint,
    PlanStatus,
    RevisionStatus,
    ServicePhase,
)
from pagefleet.operator.plan.causes import Cause, find_cause
from pagefleet.operator.plan.observed import Observed
from pagefleet.operator.plan.revision import Revision
from pagefleet.operator.plan.rollout import Scale
from pagefleet.operator.plan.service import service_url
from pagefleet.operator.plan.settings import RenderSettings

_TRUE, _FALSE, _UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the spec can be served: None where it can, else why not."""

    reason: str = "Accepted"
    message: str = ""
    is_accepted: bool = True


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the plan came to, as far as status shows it."""

    verdict: Verdict
    revision: Revision | None
    """The revision of the present spec; None where it is refused."""
    scale: Scale | None


def make_status(
    service: InferenceService, observed: Observed, outlook: Outlook, settings: RenderSettings, now: datetime
) -> InferenceServiceStatus:
    """Return the status, without the autoscaler's part. Transition times move only where a condition's status does."""
    before = service.status
    pods = tuple(pod for pod in observed.pods if not pod.is_terminating)
    ready = sum(pod.is_ready for pod in pods)
    deadline_s = service.spec.rollout.progress_deadline_s
    newest = tuple(pod for pod in pods if outlook.revision and pod.revision == outlook.revision.revision)
    cause = find_cause(service.spec, observed, newest or pods, now=now, deadline_s=deadline_s)
    conditions = _conditions(service, observed, outlook, cause, ready=ready, now=now)
    summary = _ready(conditions, outlook)
    conditions = set_condition(
        conditions,
        READY,
        summary.status,
        summary.reason,
        summary.message,
        now=now,
        observed_generation=_generation(service),
    )
    return InferenceServiceStatus(
        observed_generation=_generation(service),
        phase=_phase(service, outlook, cause, ready),
        reason=summary.reason,
        message=summary.message,
        url=service_url(service, settings),
        replicas=len(pods),
        ready_replicas=ready,
        replicas_text=f"{ready}/{service.spec.replicas}",
        selector=label_selector_text(service_selector(service.metadata.name)),
        conditions=conditions,
        revisions=_revisions(before.revisions, outlook),
        plan=_plan(service, observed, outlook),
        tuning=before.tuning,
    )


def _generation(service: InferenceService) -> int:
    return service.metadata.generation or 0


def _conditions(
    service: InferenceService, observed: Observed, outlook: Outlook, cause: Cause | None, *, ready: int, now: datetime
) -> tuple[Condition, ...]:
    conditions = tuple(
        one
        for one in service.status.conditions
        if one.type in (READY, PLAN_ACCEPTED, AVAILABLE, PROGRESSING, UP_TO_DATE)
    )
    verdict = outlook.verdict
    told = [
        (PLAN_ACCEPTED, _TRUE if verdict.is_accepted else _FALSE, verdict.reason, verdict.message),
        (AVAILABLE, *_available(service, observed, cause, ready)),
        (PROGRESSING, *_progressing(service, outlook, cause)),
        (UP_TO_DATE, *_up_to_date(outlook)),
    ]
    for kind, status, reason, message in told:
        conditions = set_condition(
            conditions, kind, status, reason, message, now=now, observed_generation=_generation(service)
        )
    return conditions


def _available(
    service: InferenceService, observed: Observed, cause: Cause | None, ready: int
) -> tuple[ConditionStatus, str, str]:
    wanted = service.spec.replicas
    if unreachable := next((one for one in observed.failures if one.kind == SERVICES.kind), None):
        return _FALSE, "ServiceRefused", f"the Service {unreachable.name} can't be made: {unreachable.message}"
    if wanted == 0 and not ready:
        return _FALSE, "Stopped", "spec.replicas is 0; kubectl scale --replicas=1 starts it"
    if ready:
        return _TRUE, "ReplicasAnswer", f"{ready} of {wanted} replicas answer"
    if failure := next(iter(observed.failures), None):
        return _FALSE, "ApplyFailed", f"{failure.kind} {failure.name} was refused: {failure.message}"
    if cause:
        return _FALSE, cause.reason, cause.message
    return _FALSE, "Starting", "the first replica is being created"


def _progressing(service: InferenceService, outlook: Outlook, cause: Cause | None) -> tuple[ConditionStatus, str, str]:
    if outlook.revision is None or outlook.scale is None:
        return _FALSE, outlook.verdict.reason, "the present spec is not rolled out"
    revision = outlook.revision.revision
    if outlook.scale.is_complete:
        return _TRUE, "RevisionReady", f"all {service.spec.replicas} replicas run revision {revision}"
    if cause and cause.is_hopeless:
        return _FALSE, cause.reason, f"revision {revision} is stuck: {cause.message}"
    if cause:
        return _TRUE, cause.reason, f"revision {revision}: {cause.message}"
    return _TRUE, "TakingOver", f"revision {revision} takes over"


def _up_to_date(outlook: Outlook) -> tuple[ConditionStatus, str, str]:
    if outlook.revision is None:
        return _UNKNOWN, "NoRevision", "the present spec has no revision"
    if outlook.revision.drift:
        return _FALSE, "TemplateDrift", outlook.revision.drift
    return _TRUE, "TemplateCurrent", "pods run the template that this operator renders"


def _ready(conditions: tuple[Condition, ...], outlook: Outlook) -> Readiness:
    """Return Ready: `readiness`; while a revision is on its way, with the reason and sentence of that.

    Requests are answered during an update, so Ready stays True, but it never hides that the update is stuck.
    """
    summary = readiness(conditions)
    if summary.status is not _TRUE or outlook.scale is None or outlook.scale.is_complete:
        return summary
    progressing = find_condition(conditions, PROGRESSING)
    if progressing is None:
        return summary
    return Readiness(_TRUE, progressing.reason, f"{summary.message}; {progressing.message}")


def _phase(service: InferenceService, outlook: Outlook, cause: Cause | None, ready: int) -> ServicePhase:
    wanted = service.spec.replicas
    if not outlook.verdict.is_accepted:
        return ServicePhase.DEGRADED if ready else ServicePhase.FAILED
    if wanted == 0:
        return ServicePhase.DRAINING if ready else ServicePhase.STOPPED
    if outlook.scale and outlook.scale.is_complete:
        return ServicePhase.READY
    if not ready:
        return cause.phase if cause else ServicePhase.PENDING
    before = service.status.revisions
    is_update = outlook.revision is not None and before.current not in (None, outlook.revision.revision)
    if is_update and not (cause and cause.is_hopeless):
        return ServicePhase.UPDATING
    return ServicePhase.READY if ready >= wanted and cause is None else ServicePhase.DEGRADED


def _revisions(before: RevisionStatus, outlook: Outlook) -> RevisionStatus:
    if outlook.revision is None:
        return before
    updated = outlook.revision.revision
    is_done = outlook.scale is not None and outlook.scale.is_complete
    return RevisionStatus(current=updated if is_done else before.current, updated=updated)


def _plan(service: InferenceService, observed: Observed, outlook: Outlook) -> PlanStatus:
    """Return the user's settings, the accelerator's memory, and what an engine of this revision measured."""
    spec, engine = service.spec, service.spec.engine
    memory = spec.accelerator.memory_bytes
    if memory is None and observed.accelerators is not None:
        memory = observed.accelerators.memory_bytes
    plan = PlanStatus(
        block_size=engine.block_size,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        weights=engine.weights.quantization,
        kv_cache=engine.kv_cache.dtype,
        prefix_caching=engine.prefix_caching,
        batching=engine.batching,
        predicted=None if memory is None else PlanFootprint(memory_bytes=memory),
    )
    measured = _measured(observed, outlook)
    if measured:
        return plan.model_copy(update=measured)
    before = service.status
    # A restarted operator has asked no engine yet: what an engine of this revision measured stays true.
    if before.plan and outlook.revision and before.revisions.updated == outlook.revision.revision:
        kept = {name: getattr(before.plan, name) for name in ("measured", *_MEASURED_KNOBS)}
        return plan.model_copy(update={name: value for name, value in kept.items() if value is not None})
    return plan


_MEASURED_KNOBS = ("block_size", "max_model_len", "max_num_seqs")


def _measured(observed: Observed, outlook: Outlook) -> dict[str, object] | None:
    revision = outlook.revision.revision if outlook.revision else None
    reports = [
        observed.progress[pod.uid].report
        for pod in observed.pods
        if pod.revision == revision and pod.uid in observed.progress
    ]
    report = next((one for one in reports if one.phase is EnginePhase.READY and one.blocks_total), None)
    if report is None or report.blocks_total is None:
        return None
    size = report.block_size
    tokens = None if size is None else report.blocks_total * size
    # The start differs a little from pod to pod: whole seconds of the first that was asked.
    seconds = round(sum(report.startup_stage_seconds.values())) or None
    measured = PlanFootprint(blocks=report.blocks_total, kv_tokens=tokens, startup_seconds=seconds)
    knobs = {"block_size": size, "max_model_len": report.max_model_len, "max_num_seqs": report.max_num_seqs}
    return {"measured": measured, **{name: value for name, value in knobs.items() if value is not None}}
