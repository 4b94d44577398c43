"""From a spec to what the capacity planner is asked: the user's knobs, the formats to choose from, load and memory."""

from dataclasses import replace
from typing import Any

from pagefleet.api.quantity import quantity_bytes
from pagefleet.api.v1alpha1 import EngineSpec, InferenceServiceSpec, KvCacheDtype, WeightQuantization
from pagefleet.capacity import (
    PRODUCTS,
    Accelerator,
    Allowed,
    Lengths,
    ModelFacts,
    Objective,
    PinnedKnobs,
    PlanRequest,
    QualityGate,
    QualityResult,
    Workload,
    find_accelerator,
    pagefleet_profile,
)
from pagefleet.operator.plan.observed import Accelerators
from pagefleet.operator.plan.pod_template import ENGINE_CONTAINER

JsonObject = dict[str, Any]


def pinned_knobs(engine: EngineSpec) -> PinnedKnobs:
    """Return what the user has set."""
    return PinnedKnobs(
        block_size=engine.block_size,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
    )


def allowed_formats(spec: InferenceServiceSpec) -> Allowed:
    """Return the formats to choose from: the one that the user has set, else those of the allow-list."""
    engine, allow = spec.engine, spec.tuning.allow
    weights, kv_cache = engine.weights.quantization, engine.kv_cache.dtype
    return Allowed(
        weights=tuple(map(str, allow.weights if weights is None else (weights,))),
        kv_cache=tuple(map(str, allow.kv_cache if kv_cache is None else (kv_cache,))),
        weights_are_fixed=weights is not None,
        kv_cache_is_fixed=kv_cache is not None,
    )


def quality_gate(spec: InferenceServiceSpec) -> QualityGate:
    """Return what the user tells of the quality of rounded formats."""
    quality = spec.tuning.quality
    if quality is None:
        return QualityGate()
    results = tuple(
        QualityResult(weights=str(one.weights), kv_cache=str(one.kv_cache), kl_nats=one.kl_nats)
        for one in quality.results
    )
    return QualityGate(results=results, max_kl_nats=quality.max_kl_nats)


def objectives_of(spec: InferenceServiceSpec) -> Workload:
    """Return the planner's usual load with the user's objectives."""
    slo = None if spec.autoscaling is None else spec.autoscaling.slo
    return Workload(ttft_s=slo.ttft_s if slo else None, itl_s=slo.itl_s if slo else None)


def find_pod_accelerator(
    spec: InferenceServiceSpec, template: JsonObject, nodes: Accelerators | None
) -> Accelerator | None:
    """Return what the engine of a rendered pod runs on; None where nothing tells how much memory that has.

    The spec's word comes first, then the nodes' labels, or the container's limit where the engine runs on the CPU.
    """
    containers = template["spec"].get("containers") or ()
    container: JsonObject = next((one for one in containers if one.get("name") == ENGINE_CONTAINER), {})
    variables = {one.get("name"): one.get("value") for one in container.get("env") or ()}
    told, resource = spec.accelerator.memory_bytes, spec.accelerator.resource
    is_cpu = variables.get("PAGEFLEET_DEVICE") == "cpu"
    if is_cpu:
        limits = (container.get("resources") or {}).get("limits") or {}
        told = None if resource else told  # it is the memory of an accelerator that the pod holds and does not use
        memory_bytes = told or _bytes_of(limits.get("memory"))
    else:
        memory_bytes = told or (nodes.memory_bytes if nodes else None)
    if memory_bytes is None:
        return None
    name = "cpu" if is_cpu else PRODUCTS.get((nodes.product if nodes else None) or "")
    return find_accelerator(name, memory_bytes=memory_bytes)


def make_request(spec: InferenceServiceSpec, model: ModelFacts, accelerator: Accelerator) -> PlanRequest:
    """Return what to plan, with all that the user left open."""
    return PlanRequest(
        model=model,
        accelerator=accelerator,
        engine=pagefleet_profile(accelerator.kind),
        count=spec.accelerator.count,
        workload=_within(objectives_of(spec), spec.engine.max_model_len or model.architecture.context_length),
        objective=Objective(spec.tuning.objective),
        pinned=pinned_knobs(spec.engine),
        allowed=allowed_formats(spec),
        gate=quality_gate(spec),
    )


def as_started(request: PlanRequest, spec: InferenceServiceSpec) -> PlanRequest:
    """Return a request for the engine as its pod starts it: what the user left out is the engine's default."""
    return replace(
        request,
        chooses_knobs=False,
        objective=Objective.THROUGHPUT,
        allowed=Allowed(
            weights=(str(spec.engine.weights.quantization or WeightQuantization.NONE),),
            kv_cache=(str(spec.engine.kv_cache.dtype or KvCacheDtype.AUTO),),
            weights_are_fixed=True,
            kv_cache_is_fixed=True,
        ),
    )


def _within(workload: Workload, longest: int) -> Workload:
    """Return a load whose mean request is no longer than the longest sequence, two thirds of it prompt."""
    if workload.prompt_tokens.mean + workload.output_tokens.mean <= longest:
        return workload
    output = max(1, longest // 3)
    return replace(workload, prompt_tokens=Lengths(max(1, longest - output)), output_tokens=Lengths(output))


def _bytes_of(amount: Any) -> int | None:
    try:
        return quantity_bytes(str(amount)) if amount is not None else None
    except ValueError:
        return None  # the API server judges it
