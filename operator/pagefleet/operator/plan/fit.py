"""Judge before a pod exists whether its model fits what it will run on.

1. the model's facts are not known
     a. an earlier look at this spec judged            that stands
     b. the hub is being asked, the revision is new    wait some seconds: no pod of it exists yet
     c. otherwise                                      go on without a plan, and say why there is none
2. nothing tells how much memory there is              likewise without
3. it fits                                             with a plan
4. it does not fit, but replicas of it have answered   the engine measured, and that is worth more than a prediction
5. it does not fit                                     refused: numbers, and what would make it fit
"""

from dataclasses import replace

from pagefleet.api.conditions import PLAN_ACCEPTED, ConditionStatus, find_condition
from pagefleet.api.v1alpha1 import InferenceService, InferenceServiceSpec, WeightQuantization
from pagefleet.capacity import CannotPlan, CapacityPlan, DoesNotFit, ObjectiveOutOfReach, PlanRequest
from pagefleet.capacity.quality import is_plain_cache
from pagefleet.capacity.text import bytes_text, count_text
from pagefleet.operator.plan.cached_plan import plan_capacity
from pagefleet.operator.plan.observed import Observed
from pagefleet.operator.plan.plan_request import as_started, find_pod_accelerator, make_request
from pagefleet.operator.plan.revision import Revision
from pagefleet.operator.plan.verdict import Verdict

PLANNED, NOT_PLANNED, DOES_NOT_FIT, PLANNING, MEASURED = "Planned", "NotPlanned", "DoesNotFit", "Planning", "Measured"
NO_MEMORY = (
    "nothing tells how much memory there is: write spec.accelerator.memory, such as 80Gi, or on a CPU a memory limit "
    "of the engine's container in spec.template"
)


def judge_fit(service: InferenceService, observed: Observed, revision: Revision) -> Verdict:
    """Return the verdict on the pods of a revision, which is the present spec's."""
    spec, facts = service.spec, observed.model.facts
    if facts is None:
        return _without_facts(service, observed, revision)
    accelerator = find_pod_accelerator(spec, revision.template, observed.accelerators)
    if accelerator is None:
        return _not_planned(NO_MEMORY)
    try:
        plan, missed = _plan_fit(spec, make_request(spec, facts, accelerator))
    except DoesNotFit as refusal:
        if _has_answered(service, observed, revision):
            return Verdict(MEASURED, f"replicas answer, although by the plan {refusal}")
        return Verdict(DOES_NOT_FIT, str(refusal), ConditionStatus.FALSE)
    except CannotPlan as refusal:
        return _not_planned(str(refusal))
    return Verdict(PLANNED, "; ".join(filter(None, (fit_sentence(plan), missed))), plan=plan)


def fit_sentence(plan: CapacityPlan) -> str:
    """Return how a model fits, in one sentence."""
    used = plan.footprint
    return (
        f"{plan.model} fits {bytes_text(used.memory_bytes)}: weights {bytes_text(used.weights_bytes)}, activations "
        f"{bytes_text(used.activation_bytes)}, runtime {bytes_text(used.runtime_bytes)} and a KV cache of "
        f"{bytes_text(plan.kv_cache_bytes)} for {count_text(plan.kv_tokens)} tokens"
    )


def _plan_fit(spec: InferenceServiceSpec, request: PlanRequest) -> tuple[CapacityPlan, str]:
    """Return a plan, and which objective it misses: slow is no reason to keep what fits from starting."""
    try:
        return _plan_as_started(spec, request), ""
    except ObjectiveOutOfReach as refusal:
        workload = replace(request.workload, ttft_s=None, itl_s=None)
        return _plan_as_started(spec, replace(request, workload=workload)), str(refusal)


def _plan_as_started(spec: InferenceServiceSpec, request: PlanRequest) -> CapacityPlan:
    """Plan the engine as it starts; raises DoesNotFit, naming the knobs with which it would fit if there are any."""
    if request.accelerator.kind == "cpu":
        # Which nodes multiply bfloat16 is not known, and with it weights and cache take half: only what fits in neither
        # is refused for sure.
        try:
            return _plan_with_knobs(spec, request)
        except DoesNotFit:
            request = replace(request, accelerator=replace(request.accelerator, has_fast_bfloat16=True))
    return _plan_with_knobs(spec, request)


def _plan_with_knobs(spec: InferenceServiceSpec, request: PlanRequest) -> CapacityPlan:
    try:
        return plan_capacity(as_started(request, spec))
    except DoesNotFit as refusal:
        fitting = plan_capacity(request)  # its refusal is about the least that the model takes
        raise DoesNotFit(
            refusal.sentence,
            needed_bytes=refusal.needed_bytes,
            usable_bytes=refusal.usable_bytes,
            fixes=(f"write under spec.engine {_knobs_sentence(spec, fitting)}", *refusal.fixes),
        ) from None


def _knobs_sentence(spec: InferenceServiceSpec, plan: CapacityPlan) -> str:
    """Return what of a fitting plan the engine does not do by itself, as a manifest has it."""
    engine, knobs = spec.engine, plan.knobs
    fields: list[tuple[str, object, object]] = [
        ("maxNumSeqs: {}", engine.max_num_seqs, knobs.max_num_seqs),
        ("maxNumBatchedTokens: {}", engine.max_num_batched_tokens, knobs.max_num_batched_tokens),
    ]
    if knobs.weights != WeightQuantization.NONE:
        fields.append(("weights: {{quantization: {}}}", engine.weights.quantization, knobs.weights))
    if knobs.kv_cache in map(str, spec.tuning.allow.kv_cache) or not is_plain_cache(knobs.kv_cache):
        fields.append(("kvCache: {{dtype: {}}}", engine.kv_cache.dtype, knobs.kv_cache))
    return ", ".join(form.format(value) for form, told, value in fields if told is None)


def _without_facts(service: InferenceService, observed: Observed, revision: Revision) -> Verdict:
    knowledge = observed.model
    recheck_s = knowledge.pending_s or knowledge.retry_s
    before = find_condition(service.status.conditions, PLAN_ACCEPTED)
    is_about_this = (
        before is not None
        and before.reason in (PLANNED, DOES_NOT_FIT, MEASURED)
        and (
            before.observed_generation == service.metadata.generation
            or (before.reason != DOES_NOT_FIT and service.status.revisions.updated == revision.revision)
        )
    )
    if before is not None and is_about_this:
        return Verdict(before.reason, before.message, before.status, is_kept=True, recheck_s=recheck_s)
    if knowledge.pending_s and all(one.revision != revision.revision for one in observed.replica_sets):
        # What answers goes on answering: no news for Ready.
        is_accepted = before is not None and before.status is ConditionStatus.TRUE
        status = ConditionStatus.TRUE if is_accepted else ConditionStatus.UNKNOWN
        message = f"asking the hub how large {service.spec.model.source.location} is"
        return Verdict(PLANNING, message, status, holds=True, recheck_s=recheck_s)
    return replace(_not_planned(knowledge.obstacle or "the hub is being asked"), recheck_s=recheck_s)


def _not_planned(why: str) -> Verdict:
    return Verdict(NOT_PLANNED, f"the engine can do what the spec asks for; whether it fits is not planned: {why}")


def _has_answered(service: InferenceService, observed: Observed, revision: Revision) -> bool:
    """Tell whether replicas of a revision answer, or once did all together."""
    if service.status.revisions.current == revision.revision:
        return True
    return any(one.revision == revision.revision and one.ready_replicas > 0 for one in observed.replica_sets)
