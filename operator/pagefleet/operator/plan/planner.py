"""From a service and what is observed of it to what should be: objects, removals, replicas, status. The one entry.

A spec that can't be served changes no object that exists: what served goes on, and status says why.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from pagefleet.api.conditions import ConditionStatus
from pagefleet.api.resources import CONTROLLER_REVISIONS, REPLICA_SETS, Resource
from pagefleet.api.v1alpha1 import InferenceService, InferenceServiceStatus
from pagefleet.operator.plan.causes import SLOW_CREATION_S
from pagefleet.operator.plan.controller_revision import render_controller_revision
from pagefleet.operator.plan.disruption_budget import render_disruption_budget
from pagefleet.operator.plan.drain import DrainMoves, alive_pods, decide_drains, without_draining
from pagefleet.operator.plan.engine_arguments import UnsupportedSpec, find_unsupported
from pagefleet.operator.plan.fit import judge_fit
from pagefleet.operator.plan.inference_pool import render_inference_pool
from pagefleet.operator.plan.intent import Intent
from pagefleet.operator.plan.model_files import find_unreachable
from pagefleet.operator.plan.names import revision_name
from pagefleet.operator.plan.network_policy import render_network_policy
from pagefleet.operator.plan.observed import Observed, ReplicaSetRecord
from pagefleet.operator.plan.replica_set import render_replica_set
from pagefleet.operator.plan.revision import Revision, choose_revision, pinned_revision, stored_revision
from pagefleet.operator.plan.rollout import Scale, decide_scale
from pagefleet.operator.plan.service import render_service
from pagefleet.operator.plan.service_account import render_service_account
from pagefleet.operator.plan.service_monitor import render_service_monitor
from pagefleet.operator.plan.settings import RenderSettings
from pagefleet.operator.plan.status import Outlook, make_status
from pagefleet.operator.plan.template_patch import TemplatePatchError
from pagefleet.operator.plan.tuned_knobs import with_knobs
from pagefleet.operator.plan.tuning import Tuning, tune
from pagefleet.operator.plan.verdict import Verdict

STARTING_RECHECK_S = 15.0
"""While a replica starts, how long it takes is part of the status."""


@dataclass(frozen=True, slots=True)
class Removal:
    """An object that has done its work; `uid` keeps a namesake safe."""

    resource: Resource
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What should be."""

    objects: tuple[Intent, ...]
    """In the order of their application."""
    removals: tuple[Removal, ...]
    scale: Scale | None
    drain: DrainMoves
    """What to do about replicas that leave; it has the replicas of each revision at this moment."""
    status: InferenceServiceStatus
    requeue_after_s: float | None
    """When time alone can change the plan; None where only an event can."""


def plan(service: InferenceService, observed: Observed, settings: RenderSettings, now: datetime) -> Plan:
    """Return the plan for one service at one moment."""
    revision: Revision | None = None
    tuning = Tuning()
    try:
        if refused := (*find_unsupported(service.spec), *filter(None, [find_unreachable(service.spec)])):
            raise UnsupportedSpec(refused)
        tuning = tune(service, observed, pinned_revision(service, observed.revisions), settings, now)
        chosen = choose_revision(service, observed.revisions, settings, tuning.knobs)
        verdict = judge_fit(with_knobs(service, tuning.knobs), observed, chosen)
        revision = chosen if verdict.allows_pods else None
    except UnsupportedSpec as refusal:
        verdict = Verdict("Unsupported", str(refusal), ConditionStatus.FALSE)
    except TemplatePatchError as refusal:
        verdict = Verdict("InvalidTemplate", f"{refusal}.", ConditionStatus.FALSE)
    if broken := next((one for one in observed.failures if one.is_invalid and one.kind == REPLICA_SETS.kind), None):
        message = f"the cluster refuses pods of this spec, most likely for spec.template: {broken.message}"
        verdict = replace(verdict, reason="InvalidTemplate", message=message, status=ConditionStatus.FALSE)
    ordered = _in_order(observed)
    target = revision or _last_good(service, observed, ordered)
    if target is None:
        status = make_status(service, observed, Outlook(verdict, None, None, tuning, DrainMoves()), settings, now)
        return Plan((), (), None, DrainMoves(), status, verdict.recheck_s)
    answering = tuple(without_draining(one, observed.pods) for one in ordered)
    scale = decide_scale(service.spec.replicas, target.revision, answering, service.spec.rollout.strategy)
    drain = decide_drains(
        scale.replicas, ordered, observed.pods, observed.drains, settle_s=settings.endpoint_delay_s, now=now
    )
    objects = _objects(service, observed, settings, target, drain)
    outlook = Outlook(verdict, revision, scale if revision else None, tuning, drain)
    status = make_status(service, observed, outlook, settings, now)
    recheck_s = min(filter(None, (_recheck_s(observed), verdict.recheck_s, drain.recheck_s)), default=None)
    return Plan(objects, _removals(service, observed, scale), scale, drain, status, recheck_s)


def _last_good(service: InferenceService, observed: Observed, ordered: tuple[ReplicaSetRecord, ...]) -> Revision | None:
    """Return what a service with a refused spec goes on with: the revision that last was ready, else the newest."""
    stored = {one.revision: one for one in observed.revisions}
    running = [one.revision for one in ordered if one.revision in stored]
    if not running:
        return None
    current = service.status.revisions.current
    return stored_revision(stored[current if current in running else running[-1]])


def _in_order(observed: Observed) -> tuple[ReplicaSetRecord, ...]:
    numbers = {one.revision: one.number for one in observed.revisions}
    present = (one for one in observed.replica_sets if not one.is_terminating)
    return tuple(sorted(present, key=lambda one: (numbers.get(one.revision, 0), one.revision)))


def _objects(
    service: InferenceService, observed: Observed, settings: RenderSettings, target: Revision, drain: DrainMoves
) -> tuple[Intent, ...]:
    """Return accounts and revisions first, since pods need the one and the other remembers what pods run."""
    stored = {one.revision: one for one in observed.revisions}
    pairs = [(target, drain.replicas[target.revision])]
    pairs += [
        (stored_revision(stored[name]), replicas)
        for name, replicas in drain.replicas.items()
        if name != target.revision and name in stored
    ]
    return (
        render_service_account(service),
        *(render_controller_revision(service, revision) for revision, _ in pairs),
        *(render_replica_set(service, revision, replicas) for revision, replicas in pairs),
        *_supporting(service, observed, settings)[1:],
    )


def _supporting(service: InferenceService, observed: Observed, settings: RenderSettings) -> tuple[Intent, ...]:
    """Return what does not depend on a revision."""
    selects_traffic = all(pod.traffic is not None for pod in alive_pods(observed.pods))
    objects = [
        render_service_account(service),
        render_service(service, selects_traffic=selects_traffic),
        render_disruption_budget(service),
        render_network_policy(service, settings),
    ]
    if observed.has_service_monitors:
        objects.append(render_service_monitor(service))
    if observed.has_inference_pools:
        objects.append(render_inference_pool(service, settings, selects_traffic=selects_traffic))
    return tuple(objects)


def _removals(service: InferenceService, observed: Observed, scale: Scale) -> tuple[Removal, ...]:
    """Return the ReplicaSets that are done with, and stored revisions that no ReplicaSet runs any more."""
    target_and_kept = set(scale.replicas)
    removals = []
    for kind in (REPLICA_SETS, CONTROLLER_REVISIONS):
        revisions = (
            {one.revision for one in observed.replica_sets} & set(scale.finished)
            if kind is REPLICA_SETS
            else {one.revision for one in observed.revisions} - target_and_kept
        )
        for revision in sorted(revisions):
            child = observed.children.get((kind.kind, revision_name(service.metadata.name, revision)))
            if child and not child.is_terminating:
                removals.append(Removal(kind, child.name, child.uid))
    return tuple(removals)


def _recheck_s(observed: Observed) -> float | None:
    is_starting = any(not pod.is_ready and not pod.is_terminating and not pod.drain_began for pod in observed.pods)
    return min(STARTING_RECHECK_S, SLOW_CREATION_S) if is_starting else None
