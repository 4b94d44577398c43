"""The plan as a service's status shows it: the settings of its replicas, what was predicted, and what was measured."""

from dataclasses import replace
from typing import Any

from pagefleet.api.capacity import CapacityReport, EnginePhase
from pagefleet.api.v1alpha1 import (
    InferenceService,
    KvCacheDtype,
    PlanFootprint,
    PlanStatus,
    PlanStepTime,
    WeightQuantization,
)
from pagefleet.capacity import CapacityPlan, Choice
from pagefleet.capacity.step_time import StepTime
from pagefleet.operator.plan.observed import Observed
from pagefleet.operator.plan.revision import Revision
from pagefleet.operator.plan.tuned_knobs import TunedKnobs
from pagefleet.operator.plan.tuning import Tuning
from pagefleet.operator.plan.verdict import Verdict

MOST_DRIFT = 0.05
"""A prediction is right within this share of what is measured."""

_MEASURED = ("measured", "block_size", "max_model_len", "max_num_seqs")
"""What a report of an engine tells of a plan."""


def make_plan_status(
    service: InferenceService, observed: Observed, verdict: Verdict, revision: Revision | None, tuning: Tuning
) -> PlanStatus:
    """Return the user's settings, then the planner's, then what an engine of this revision reports."""
    before = service.status.plan
    plan = _asked_for(service, observed)
    if verdict.is_kept and before is not None:
        plan = before
    elif verdict.plan is not None:
        plan = plan.model_copy(update=_planned(service, verdict.plan, tuning))
    if measured := _measured(observed, revision):
        return plan.model_copy(update=measured)
    # A restarted operator has asked no engine yet: what an engine of this revision measured stays true.
    is_same = revision is not None and service.status.revisions.updated == revision.revision
    if before is not None and before.measured is not None and is_same:
        kept = {name: getattr(before, name) for name in _MEASURED}
        return plan.model_copy(update={name: value for name, value in kept.items() if value is not None})
    return plan if revision is not None else plan.model_copy(update={"measured": None})


def plan_drift(plan: PlanStatus) -> float | None:
    """Return by which share the engine takes more memory than predicted; None where one of the two is unknown.

    Both with the cache that the engine made: it takes what the rest leaves, so it would hide what the rest has more.
    """
    predicted, measured = _total_bytes(plan.predicted), _total_bytes(plan.measured)
    if predicted is None or measured is None:
        return None
    assert plan.predicted is not None and plan.measured is not None  # noqa: S101, PT018 - they have totals
    cache_bytes = plan.measured.kv_cache_bytes or 0
    return measured / (predicted - (plan.predicted.kv_cache_bytes or 0) + cache_bytes) - 1


def _total_bytes(footprint: PlanFootprint | None) -> int | None:
    if footprint is None:
        return None
    parts = (
        footprint.weights_bytes,
        footprint.activation_bytes,
        footprint.overhead_bytes,
        footprint.kv_cache_bytes,
    )
    return None if None in parts else sum(part or 0 for part in parts)


def _asked_for(service: InferenceService, observed: Observed) -> PlanStatus:
    spec, engine = service.spec, service.spec.engine
    memory_bytes = spec.accelerator.memory_bytes
    if memory_bytes is None and observed.accelerators is not None:
        memory_bytes = observed.accelerators.memory_bytes
    return PlanStatus(
        block_size=engine.block_size,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        weights=engine.weights.quantization,
        kv_cache=engine.kv_cache.dtype,
        prefix_caching=engine.prefix_caching,
        batching=engine.batching,
        predicted=None if memory_bytes is None else PlanFootprint(memory_bytes=memory_bytes),
    )


def _planned(service: InferenceService, plan: CapacityPlan, tuning: Tuning) -> dict[str, Any]:
    engine, knobs = service.spec.engine, plan.knobs
    cache_bytes = plan.kv_cache_bytes + plan.footprint.kv_reserve_bytes
    return {
        "block_size": knobs.block_size,
        "gpu_memory_utilization": knobs.gpu_memory_utilization,
        "max_model_len": plan.max_model_len,
        "max_num_seqs": knobs.max_num_seqs,
        "max_num_batched_tokens": knobs.max_num_batched_tokens,
        "weights": engine.weights.quantization or WeightQuantization.NONE,
        "kv_cache": engine.kv_cache.dtype or KvCacheDtype.AUTO,
        "tensor_parallel_size": knobs.tensor_parallel_size,
        "predicted": PlanFootprint(
            memory_bytes=plan.footprint.memory_bytes,
            weights_bytes=plan.footprint.weights_bytes,
            activation_bytes=plan.footprint.activation_bytes,
            overhead_bytes=plan.footprint.runtime_bytes,
            kv_cache_bytes=cache_bytes,
            bytes_per_token=round(cache_bytes / plan.kv_tokens) if plan.kv_tokens else None,
            blocks=plan.blocks,
            kv_tokens=plan.kv_tokens,
            full_length_sequences=round(plan.full_length_sequences, 2),
        ),
        "step_time": _step_time(plan.step),
        "limit": tuning.plan.limit if tuning.plan is not None and tuning.plan.knobs == plan.knobs else plan.limit,
        "formats": tuple(each.sentence for each in tuning.formats or plan.formats),
        "why": _why(plan, tuning),
    }


def _step_time(step: StepTime | None) -> PlanStepTime | None:
    if step is None:
        return None
    return PlanStepTime(
        base_seconds=step.base_s,
        prefill_token_seconds=step.prefill_token_s,
        kv_token_seconds=step.kv_token_s,
        sequence_seconds=step.sequence_s,
        source=step.source,
    )


def chosen_flags(knobs: TunedKnobs) -> set[str]:
    """Return the knobs that the planner has chosen, as a plan names them."""
    return {flag for flag, name in _TUNED.items() if getattr(knobs, name) is not None}


def _why(plan: CapacityPlan, tuning: Tuning) -> tuple[str, ...]:
    """Return a sentence for each knob; those that were chosen earlier stand in the plan like the user's."""
    missing = f"not in this engine yet: {', '.join(plan.unavailable)}" if plan.unavailable else ""
    chosen = chosen_flags(tuning.knobs)
    reasons = {(one.knob, one.value): one.sentence for one in tuning.plan.choices} if tuning.plan is not None else {}

    def reason(choice: Choice) -> str:
        if choice.knob not in chosen:
            return choice.sentence
        earlier = replace(choice, reason="chosen when this spec was first planned")
        return reasons.get((choice.knob, choice.value), earlier.sentence)

    choices = (f"{choice.knob} {choice.value}: {reason(choice)}" for choice in plan.choices)
    return tuple(filter(None, (missing, *choices)))


_TUNED = {
    "block-size": "block_size",
    "max-num-seqs": "max_num_seqs",
    "max-num-batched-tokens": "max_num_batched_tokens",
    "quantization": "weights",
    "kv-cache-dtype": "kv_cache",
    "gpu-memory-utilization": "gpu_memory_utilization",
}
"""Knobs of a plan by the names that they have among the tuned ones."""


def _measured(observed: Observed, revision: Revision | None) -> dict[str, Any]:
    reports = [
        observed.progress[pod.uid].report
        for pod in observed.pods
        if revision is not None and pod.revision == revision.revision and pod.uid in observed.progress
    ]
    report = next((one for one in reports if one.phase is EnginePhase.READY and one.blocks_total), None)
    if report is None:
        return {}
    knobs = {
        "block_size": report.block_size,
        "max_model_len": report.max_model_len,
        "max_num_seqs": report.max_num_seqs,
    }
    return {"measured": _footprint(report), **{name: value for name, value in knobs.items() if value is not None}}


def _footprint(report: CapacityReport) -> PlanFootprint:
    blocks, size = report.blocks_total or 0, report.block_size
    tokens = None if size is None else blocks * size
    measured = None if report.memory is None else report.memory.measured
    return PlanFootprint(
        memory_bytes=report.memory_bytes,
        weights_bytes=report.weights_bytes,
        activation_bytes=None if measured is None else measured.activation_bytes,
        overhead_bytes=None if measured is None else measured.runtime_bytes + measured.graph_bytes,
        kv_cache_bytes=report.kv_cache_bytes,
        bytes_per_token=round(report.kv_cache_bytes / tokens) if report.kv_cache_bytes and tokens else None,
        blocks=blocks,
        kv_tokens=tokens,
        full_length_sequences=round(tokens / report.max_model_len, 2) if tokens and report.max_model_len else None,
        # The start differs a little from pod to pod: whole seconds of the first that was asked.
        startup_seconds=round(sum(report.startup_stage_seconds.values())) or None,
    )
