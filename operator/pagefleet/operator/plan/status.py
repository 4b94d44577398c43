"""What a service's status says: conditions, one phase, one reason with its sentence, counts and names."""

import math
from dataclasses import dataclass
from datetime import datetime

from pagefleet.api.conditions import (
    AVAILABLE,
    PLAN_ACCEPTED,
    PLAN_MATCHES,
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
    PlanStatus,
    RevisionStatus,
    ServicePhase,
)
from pagefleet.operator.plan.causes import Cause, find_cause
from pagefleet.operator.plan.drain import DrainMoves
from pagefleet.operator.plan.observed import Observed
from pagefleet.operator.plan.plan_status import MOST_DRIFT, make_plan_status, plan_drift
from pagefleet.operator.plan.revision import Revision
from pagefleet.operator.plan.rollout import Scale
from pagefleet.operator.plan.service import service_url
from pagefleet.operator.plan.settings import RenderSettings
from pagefleet.operator.plan.tuned_knobs import with_knobs
from pagefleet.operator.plan.tuning import Tuning
from pagefleet.operator.plan.verdict import Verdict

_TRUE, _FALSE, _UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the plan came to, as far as status shows it."""

    verdict: Verdict
    revision: Revision | None
    """The revision of the present spec; None where it gets no pods."""
    scale: Scale | None
    tuning: Tuning
    drain: DrainMoves


def make_status(
    service: InferenceService, observed: Observed, outlook: Outlook, settings: RenderSettings, now: datetime
) -> InferenceServiceStatus:
    """Return the status, without the autoscaler's part. Transition times move only where a condition's status does."""
    before = service.status
    pods = tuple(pod for pod in observed.pods if not pod.is_terminating)
    ready = sum(pod.is_ready for pod in pods)
    deadline_s = service.spec.rollout.progress_deadline_s
    staying = tuple(pod for pod in pods if pod.drain_began is None)
    newest = tuple(pod for pod in staying if outlook.revision and pod.revision == outlook.revision.revision)
    cause = find_cause(service.spec, observed, newest or staying, now=now, deadline_s=deadline_s)
    tuned = with_knobs(service, outlook.tuning.knobs)
    plan = make_plan_status(tuned, observed, outlook.verdict, outlook.revision, outlook.tuning)
    conditions = _conditions(service, observed, outlook, cause, ready=ready, now=now)
    if (drift := plan_drift(plan)) is not None:
        told = _plan_matches(plan, drift)
        conditions = set_condition(
            _with_earlier(conditions, service), PLAN_MATCHES, *told, now=now, observed_generation=_generation(service)
        )
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
        plan=plan,
        tuning=before.tuning if outlook.verdict.is_kept else outlook.tuning.status,
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
        (PLAN_ACCEPTED, verdict.status, verdict.reason, verdict.message),
        (AVAILABLE, *_available(service, observed, outlook, cause, ready)),
        (PROGRESSING, *_progressing(service, outlook, cause)),
        (UP_TO_DATE, *_up_to_date(outlook)),
    ]
    for kind, status, reason, message in told:
        conditions = set_condition(
            conditions, kind, status, reason, message, now=now, observed_generation=_generation(service)
        )
    return conditions


def _available(
    service: InferenceService, observed: Observed, outlook: Outlook, cause: Cause | None, ready: int
) -> tuple[ConditionStatus, str, str]:
    wanted, verdict = service.spec.replicas, outlook.verdict
    if unreachable := next((one for one in observed.failures if one.kind == SERVICES.kind), None):
        return _FALSE, "ServiceRefused", f"the Service {unreachable.name} can't be made: {unreachable.message}"
    if wanted == 0 and outlook.drain.draining:
        return _FALSE, "Draining", _draining(outlook.drain)
    if wanted == 0 and not ready:
        return _FALSE, "Stopped", "spec.replicas is 0; kubectl scale --replicas=1 starts it"
    if ready:
        return _TRUE, "ReplicasAnswer", f"{ready} of {wanted} replicas answer"
    if failure := next(iter(observed.failures), None):
        return _FALSE, "ApplyFailed", f"{failure.kind} {failure.name} was refused: {failure.message}"
    if cause:
        return _FALSE, cause.reason, cause.message
    if verdict.holds:
        return _FALSE, verdict.reason, verdict.message
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
    if outlook.drain.draining:
        return _TRUE, "Draining", _draining(outlook.drain)
    return _TRUE, "TakingOver", f"revision {revision} takes over"


def _draining(drain: DrainMoves) -> str:
    """Return a sentence about replicas that leave; its time moves in steps of ten seconds, as each is a write."""
    who = "1 replica drains" if drain.draining == 1 else f"{drain.draining} replicas drain"
    left_s = 10 * math.ceil(drain.left_s / 10)
    if drain.in_flight is None:
        return f"{who}: new requests go to others, at most {left_s} s left"
    requests = "1 request" if drain.in_flight == 1 else f"{drain.in_flight} requests"
    return f"{who}: {requests} in flight, at most {left_s} s left"


def _up_to_date(outlook: Outlook) -> tuple[ConditionStatus, str, str]:
    if outlook.revision is None:
        return _UNKNOWN, "NoRevision", "the present spec has no revision"
    if outlook.revision.drift:
        return _FALSE, "TemplateDrift", outlook.revision.drift
    return _TRUE, "TemplateCurrent", "pods run the template that this operator renders"


def _with_earlier(conditions: tuple[Condition, ...], service: InferenceService) -> tuple[Condition, ...]:
    """Add what the status said of the plan's error: its time of transition stays."""
    earlier = find_condition(service.status.conditions, PLAN_MATCHES)
    return conditions if earlier is None else (*conditions, earlier)


def _plan_matches(plan: PlanStatus, drift: float) -> tuple[ConditionStatus, str, str]:
    predicted = plan.predicted.kv_tokens if plan.predicted else None
    measured = plan.measured.kv_tokens if plan.measured else None
    numbers = f"the engine takes {abs(drift):.1%} {'more' if drift > 0 else 'less'} memory than planned"
    if measured is not None and predicted is not None:
        numbers += f"; its KV cache holds {measured:,} tokens of {predicted:,} planned"
    if abs(drift) <= MOST_DRIFT:
        return _TRUE, "WithinFivePercent", numbers
    return _FALSE, "PlanDrift", f"{numbers}; the plan of other services with this model may be off likewise"


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
    if outlook.verdict.status is _FALSE:
        return ServicePhase.DEGRADED if ready else ServicePhase.FAILED
    if wanted == 0:
        return ServicePhase.DRAINING if ready or outlook.drain.draining else ServicePhase.STOPPED
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
