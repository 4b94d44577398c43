"""What the planner would choose for a service, what that brings, and whether replicas get it.

1. mode Off, or nothing known of the model      no choice; what replicas run with stays
2. mode Recommend                               the choice and its gain go into the status, nothing else changes
3. mode Auto, the spec has no revision yet      the choice is made, and pinned with the revision
4. mode Auto, the spec has a revision           its knobs stay, unless a gain of 10 % is expected, the last choice is a
                                                day old and was made by this version of the operator
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pagefleet.api.v1alpha1 import InferenceService, InferenceServiceSpec, TuningMode, TuningObjective, TuningStatus
from pagefleet.capacity import CannotPlan, CapacityPlan, DoesNotFit, FormatQuality, PlanRequest, aim
from pagefleet.capacity.quality import is_plain_cache
from pagefleet.capacity.text import bytes_text, time_text
from pagefleet.operator.plan.cached_plan import plan_capacity
from pagefleet.operator.plan.observed import Observed, RevisionRecord
from pagefleet.operator.plan.plan_request import as_started, find_pod_accelerator, make_request
from pagefleet.operator.plan.pod_template import render_pod_template
from pagefleet.operator.plan.settings import RenderSettings
from pagefleet.operator.plan.tuned_knobs import NO_KNOBS, TunedKnobs, with_knobs

LEAST_GAIN = 1.1
"""A smaller gain is within the error of the prediction, and no reason to restart replicas."""
LEAST_AGE = timedelta(days=1)
"""Time between two choices for one spec."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """What replicas run with, and what the status says of it."""

    knobs: TunedKnobs = NO_KNOBS
    status: TuningStatus | None = None
    plan: CapacityPlan | None = None
    """The plan that the knobs are from, or that now would be chosen."""
    formats: tuple[FormatQuality, ...] = ()
    """What may be chosen of weights and caches; empty where nothing is chosen."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Better knobs than the present ones, or the same."""

    knobs: TunedKnobs
    plan: CapacityPlan
    gain: float
    """How many times as much a replica serves, or as fast; infinite where the model does not fit otherwise."""
    sentence: str


def tune(
    service: InferenceService,
    observed: Observed,
    pinned: RevisionRecord | None,
    settings: RenderSettings,
    now: datetime,
) -> Tuning:
    """Return the knobs of the present spec, whose stored revision is `pinned`, and what to say of them.

    Raises UnsupportedSpec and TemplatePatchError.
    """
    mode = service.spec.tuning.mode
    kept = pinned.knobs if pinned else NO_KNOBS
    proposal = None if mode is TuningMode.OFF else _proposal_for(service, kept, observed, settings)
    if proposal is None:
        return Tuning(kept)
    best, formats = proposal.plan, proposal.plan.formats
    if mode is TuningMode.RECOMMEND:
        told = _told(proposal, proposal.knobs if proposal.gain >= LEAST_GAIN else NO_KNOBS)
        return Tuning(kept, told, formats=formats)
    if pinned is None or _may_choose_again(pinned, proposal, settings, now):
        return Tuning(proposal.knobs, _told(proposal, proposal.knobs, is_applied=True), best, formats)
    if proposal.gain < LEAST_GAIN:
        told = TuningStatus(recommended=kept.as_fields() or None, applied=True, message=_KEPT)
        return Tuning(kept, told, best, formats)
    return Tuning(kept, _told(proposal, proposal.knobs), best, formats)


_KEPT = "replicas keep the knobs that were chosen for this spec: others would gain less than 10 %"


def _may_choose_again(pinned: RevisionRecord, proposal: Proposal, settings: RenderSettings, now: datetime) -> bool:
    is_old = pinned.created is not None and now - pinned.created >= LEAST_AGE
    return proposal.gain >= LEAST_GAIN and is_old and pinned.operator_version == settings.operator_version


def _told(proposal: Proposal, recommended: TunedKnobs, *, is_applied: bool = False) -> TuningStatus:
    return TuningStatus(recommended=recommended.as_fields() or None, applied=is_applied, message=proposal.sentence)


def _proposal_for(
    service: InferenceService, kept: TunedKnobs, observed: Observed, settings: RenderSettings
) -> Proposal | None:
    facts = observed.model.facts
    if facts is None:
        return None
    accelerator = find_pod_accelerator(service.spec, render_pod_template(service, settings), observed.accelerators)
    if accelerator is None:
        return None
    try:
        return propose(service, kept, make_request(service.spec, facts, accelerator))
    except CannotPlan:
        return None  # the verdict on the spec says why


def propose(service: InferenceService, kept: TunedKnobs, request: PlanRequest) -> Proposal:
    """Choose knobs for the user's objective and compare them with the present ones; raises CannotPlan."""
    spec = service.spec
    request = aim(request)
    best = plan_capacity(request)
    if best.unavailable:
        raise CannotPlan(f"not in this engine yet: {', '.join(best.unavailable)}")
    knobs = _knobs_of(spec, best)
    present_spec = with_knobs(service, kept).spec
    pinned = make_request(present_spec, request.model, request.accelerator).pinned
    try:
        present = plan_capacity(as_started(replace(request, pinned=pinned), present_spec))
    except DoesNotFit:
        return Proposal(knobs, best, float("inf"), "with the present settings the model does not fit")
    except CannotPlan:
        return Proposal(knobs, best, float("inf"), "with the present settings the objectives are out of reach")
    gain, sentence = _compare(spec.tuning.objective, best, present)
    return Proposal(knobs if gain >= 1 else kept, best, gain, sentence)


def _knobs_of(spec: InferenceServiceSpec, plan: CapacityPlan) -> TunedKnobs:
    """Return what of a plan the user left open; formats only where they are no default."""
    engine, knobs = spec.engine, plan.knobs
    allowed = spec.tuning.allow
    weights = knobs.weights if engine.weights.quantization is None and knobs.weights != "none" else None
    is_named = knobs.kv_cache in map(str, allowed.kv_cache) or not is_plain_cache(knobs.kv_cache)
    chosen = engine.kv_cache.dtype is None and is_named
    takes_share = spec.tuning.objective is TuningObjective.MEMORY and engine.gpu_memory_utilization is None
    return TunedKnobs(
        block_size=knobs.block_size if engine.block_size is None else None,
        max_num_seqs=knobs.max_num_seqs if engine.max_num_seqs is None else None,
        max_num_batched_tokens=knobs.max_num_batched_tokens if engine.max_num_batched_tokens is None else None,
        weights=weights,
        kv_cache=knobs.kv_cache if chosen else None,
        gpu_memory_utilization=knobs.gpu_memory_utilization if takes_share else None,
    )


def _compare(objective: TuningObjective, best: CapacityPlan, present: CapacityPlan) -> tuple[float, str]:
    """Return what the better knobs bring in the terms of the objective, as a ratio and a sentence."""
    if objective is TuningObjective.MEMORY:
        words = f"{bytes_text(best.predicted_bytes)} are expected to serve the load, now"
        return (
            present.predicted_bytes / best.predicted_bytes,
            f"{words} {bytes_text(present.predicted_bytes)} are taken (predicted from the model's files)",
        )
    before, after = _stall_s(present), _stall_s(best)
    if objective is TuningObjective.LATENCY and before and after:
        words = f"the longest step is expected to take {time_text(after)}, now {time_text(before)}"
        return before / after, f"{words} (predicted from data sheets)"
    before, after = present.service.requests_per_s, best.service.requests_per_s
    if before and after:
        words = f"{after:.3g} requests/s are expected of a replica, now {before:.3g}"
        return after / before, f"{words} (predicted from data sheets)"
    before, after = present.service.concurrency, best.service.concurrency
    words = f"{after:.3g} sequences at once are expected of a replica, now {before:.3g}"
    return (after / before if before else float("inf")), f"{words} (the accelerator's speed is not known)"


def _stall_s(plan: CapacityPlan) -> float | None:
    """Return the longest step of a plan: all sequences decode beside a whole chunk of a prompt."""
    if plan.step is None or plan.service.itl_s is None:
        return None
    knobs = plan.knobs
    return (
        plan.step.base_s
        + knobs.max_num_batched_tokens * plan.step.prefill_token_s
        + (plan.service.concurrency * plan.step.sequence_s)
    )
