"""How long a step takes and how many requests a replica serves: a linear model, and its closed form under objectives.

A step takes `base + prefill tokens x prefill_token + cached tokens read x kv_token + sequences x sequence` seconds.
"""

import math
from dataclasses import dataclass

from pagefleet.capacity.accelerators import Accelerator
from pagefleet.capacity.engine_profile import EngineProfile
from pagefleet.capacity.kv_formats import kv_bytes_per_token
from pagefleet.capacity.memory import Knobs
from pagefleet.capacity.model_facts import ModelFacts
from pagefleet.capacity.weight_facts import Role
from pagefleet.capacity.workload import Workload

OBJECTIVE_SHARE = 0.85
"""Means are planned for this share of an objective, so that the tail stays within it."""
KV_SHARE = 0.85
"""Share of the cache that running sequences hold on average, so that bursts do not preempt."""
LOAD_SHARE = 0.85
"""Share of its service rate that a replica gets: above it, queues grow long."""


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Hold the four terms of a step, in seconds."""

    base_s: float
    prefill_token_s: float
    kv_token_s: float
    sequence_s: float
    source: str = "prior"
    """`prior` from data sheets, or `measured`."""

    def total_s(self, *, steps: int, prefill_tokens: int, kv_tokens: int, sequences: int) -> float:
        """Return what steps take in all; tokens read and sequences are summed over the steps."""
        return (
            self.base_s * steps
            + self.prefill_token_s * prefill_tokens
            + self.kv_token_s * kv_tokens
            + self.sequence_s * sequences
        )

    def times(self, factor: float) -> "StepTime":
        """Return steps that take so many times as long."""
        return StepTime(
            base_s=self.base_s * factor,
            prefill_token_s=self.prefill_token_s * factor,
            kv_token_s=self.kv_token_s * factor,
            sequence_s=self.sequence_s * factor,
            source=self.source,
        )

    def decode_s(self, context: float) -> float:
        """Return what one decoding sequence of this context adds to a step."""
        return self.sequence_s + self.kv_token_s * context


@dataclass(frozen=True, kw_only=True)
class Service:
    """Say what one replica serves at its best point within the objectives; None is not known."""

    concurrency: float
    """Sequences that run at once."""
    limits: dict[str, float]
    """Sequences that each limit would allow."""
    binding_limit: str
    """The smallest of them."""
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    itl_s: float | None = None
    ttft_s: float | None = None
    """Of a prompt that finds a place at once, on average."""
    prefill_share: float | None = None
    """Part of the engine's time that prompts take."""

    def replicas_for(self, rate_per_s: float) -> int | None:
        """Return the replicas that a rate of requests needs."""
        if self.requests_per_s is None:
            return None
        return max(1, math.ceil(rate_per_s / (self.requests_per_s * LOAD_SHARE)))


def predict_step_time(
    model: ModelFacts,
    accelerator: Accelerator,
    knobs: Knobs,
    weights_bytes: int,
    profile: EngineProfile,
    context: float,
) -> StepTime | None:
    """Predict the terms from data sheets; None where speeds are unknown. `context` is the mean, for windows."""
    if accelerator.bandwidth_bytes_per_s is None or accelerator.flops_bfloat16 is None:
        return None
    parallel, priors = knobs.tensor_parallel_size, profile.speed
    flops = accelerator.flops_bfloat16 * parallel * priors.compute
    body, head = _computed_weights(model)
    kv_bytes = kv_bytes_per_token(
        model.architecture,
        knobs.kv_cache,
        block_size=knobs.block_size,
        tensor_parallel_size=parallel,
        context=max(1, round(context)),
    )
    return StepTime(
        base_s=priors.step_overhead_s + weights_bytes / (accelerator.bandwidth_bytes_per_s * priors.weight_stream),
        prefill_token_s=2 * body / flops,
        kv_token_s=kv_bytes / (accelerator.bandwidth_bytes_per_s * priors.kv_stream),
        sequence_s=2 * (body + head) / flops * priors.decode_compute,
    )


def scale_step_time(measured: StepTime, predicted: StepTime | None, reference: StepTime | None) -> StepTime:
    """Return measured terms times predicted ones over those of the formats that were measured."""
    if predicted is None or reference is None:
        return measured
    return StepTime(
        base_s=measured.base_s * predicted.base_s / reference.base_s,
        prefill_token_s=measured.prefill_token_s * predicted.prefill_token_s / reference.prefill_token_s,
        kv_token_s=measured.kv_token_s * predicted.kv_token_s / reference.kv_token_s,
        sequence_s=measured.sequence_s * predicted.sequence_s / reference.sequence_s,
        source=measured.source,
    )


def _computed_weights(model: ModelFacts) -> tuple[float, float]:
    """Return the weights that multiply each token in the layers, and those of the output matrix."""
    weights, architecture = model.weights, model.architecture
    body = float(weights.count(Role.LINEAR, Role.KV_PROJECTION))
    if architecture.experts is not None:
        body += weights.count(Role.EXPERTS) * architecture.experts.per_token / architecture.experts.total
    return body, float(architecture.vocabulary_size * architecture.hidden_size)


def rounded_context(workload: Workload, block_size: int) -> int:
    """Return the tokens of the blocks that a mean sequence holds."""
    return math.ceil(workload.mean_context / block_size) * block_size


def serve(
    step: StepTime | None, workload: Workload, *, kv_tokens: int, block_size: int, max_num_seqs: int, chunk: int
) -> Service:
    """Find how many sequences run at once within every limit, and the rate of requests that this gives.

    `chunk` is the prompt tokens of one step at most. A concurrency below 1 means that not even one request is in time.
    """
    context = rounded_context(workload, block_size)
    # One request is served even where its context is more than the planned share of the cache.
    kv_limit = max(KV_SHARE * kv_tokens / context, float(kv_tokens >= context))
    limits = {"KV memory": kv_limit, "max_num_seqs": float(max_num_seqs)}
    if step is not None:
        limits |= _latency_limits(step, workload, chunk)
    binding = min(limits, key=lambda name: limits[name])
    concurrency = limits[binding]
    if step is None or concurrency < 1:
        return Service(concurrency=concurrency, limits=limits, binding_limit=binding)
    outputs, prompt = workload.output_tokens.mean, workload.computed_prompt_tokens
    decode_s = step.decode_s(workload.mean_context)
    request_s = step.prefill_token_s * prompt + outputs * (step.base_s / concurrency + decode_s)
    return Service(
        concurrency=concurrency,
        limits=limits,
        binding_limit=binding,
        requests_per_s=1 / request_s,
        output_tokens_per_s=outputs / request_s,
        itl_s=concurrency * request_s / outputs,
        ttft_s=workload.prefill_steps(chunk) * (step.base_s + concurrency * decode_s) + step.prefill_token_s * prompt,
        prefill_share=step.prefill_token_s * prompt / request_s,
    )


def _latency_limits(step: StepTime, workload: Workload, chunk: int) -> dict[str, float]:
    limits = {}
    prompt, decode_s = workload.computed_prompt_tokens, step.decode_s(workload.mean_context)
    if workload.itl_s is not None:
        each_s = step.prefill_token_s * prompt / workload.output_tokens.mean + decode_s
        limits["inter-token latency"] = (OBJECTIVE_SHARE * workload.itl_s - step.base_s) / each_s
    if workload.ttft_s is not None:
        steps = workload.prefill_steps(chunk)
        left_s = OBJECTIVE_SHARE * workload.ttft_s - step.prefill_token_s * prompt - steps * step.base_s
        limits["time to first token"] = left_s / (steps * decode_s)
    return limits
