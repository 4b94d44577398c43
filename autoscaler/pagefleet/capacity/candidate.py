"""One choice of formats, judged: the knobs that follow from it, what memory it needs, what it serves."""

import math
from dataclasses import dataclass, replace

from pagefleet.capacity.kv_formats import KV_FORMATS
from pagefleet.capacity.memory import Footprint, Knobs, footprint
from pagefleet.capacity.request import PlanRequest
from pagefleet.capacity.step_time import Service, StepTime, predict_step_time, scale_step_time, serve
from pagefleet.capacity.weight_formats import WEIGHT_FORMATS, weights_bytes

LARGEST_MAX_NUM_SEQS = 1024
LARGEST_CHUNK = 8192
CHUNK_STEP = 64
NEAR_ENOUGH = 0.99
"""Share of the best rate from which fewer places win: each costs memory for its logits."""


@dataclass(frozen=True)
class Load:
    """Say what a replica must serve, where the least memory is looked for."""

    replicas: int
    sequences: float
    """Sequences that run at once in each."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Hold a choice with its consequences. It fits if `blocks` hold what must be held."""

    knobs: Knobs
    footprint: Footprint
    blocks: int
    """0 where it does not fit."""
    needed_blocks: int
    max_model_len: int
    step: StepTime | None
    service: Service
    unavailable: tuple[str, ...]
    """What of it the engine cannot do yet, in words."""
    load: Load | None = None
    """What it is the least memory for; None where it serves most."""

    @property
    def fits(self) -> bool:
        """Whether memory suffices."""
        return self.blocks >= self.needed_blocks

    @property
    def needed_bytes(self) -> int:
        """Return what one accelerator must give for the smallest cache that is useful."""
        return self.footprint.fixed_bytes + self.needed_blocks * self.footprint.block_bytes

    @property
    def predicted_bytes(self) -> int:
        """What it takes of one accelerator in all."""
        return self.footprint.fixed_bytes + self.blocks * self.footprint.block_bytes

    @property
    def score(self) -> float:
        """How good it is, to compare by ratios.

        How few bytes all replicas take where the least memory is looked for; else how much it serves: requests per
        second, or sequences at once where no speed is known.
        """
        if self.load is not None:
            return 1 / (self.load.replicas * self.predicted_bytes)
        if self.step is None:
            return self.service.concurrency
        return self.service.requests_per_s or 0.0  # nothing where not even one request is in time


def judge_most(request: PlanRequest, weights: str, kv_cache: str) -> Candidate:
    """Choose the knobs with which two formats serve most. It may not fit, or meet no objective."""
    candidates = [judge_places(request, weights, kv_cache, places) for places in places_of(request)]
    fitting = [candidate for candidate in candidates if candidate.fits and candidate.service.concurrency >= 1]
    if not fitting:
        return next((candidate for candidate in candidates if candidate.fits), candidates[0])
    enough = NEAR_ENOUGH * max(candidate.score for candidate in fitting)
    return next(candidate for candidate in fitting if candidate.score >= enough)


def places_of(request: PlanRequest) -> list[int]:
    """Return the values of max_num_seqs to choose from, ascending."""
    if request.pinned.max_num_seqs is not None:
        return [request.pinned.max_num_seqs]
    if not request.chooses_knobs:
        return [request.engine.max_num_seqs]
    most = LARGEST_MAX_NUM_SEQS if request.accelerator.speeds_are_known else request.engine.max_num_seqs
    if request.pinned.max_num_batched_tokens is not None:
        most = min(most, request.pinned.max_num_batched_tokens)
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


def judge_places(request: PlanRequest, weights: str, kv_cache: str, places: int) -> Candidate:
    """Predict what follows from two formats and a max_num_seqs."""
    model, profile, workload = request.model, request.engine, request.workload
    weights_total = weights_bytes(
        model,
        quantization=weights,
        compute_dtype=request.compute_dtype,
        tensor_parallel_size=request.count,
        copies_tied_head=profile.copies_tied_head,
    )
    knobs = Knobs(
        compute_dtype=request.compute_dtype,
        weights=weights,
        kv_cache=kv_cache,
        block_size=request.pinned.block_size or KV_FORMATS[kv_cache].usual_block_size,
        max_num_seqs=places,
        max_num_batched_tokens=profile.max_num_batched_tokens,
        gpu_memory_utilization=request.gpu_memory_utilization,
        tensor_parallel_size=request.count,
    )
    step = _step_time(request, knobs, weights_total)
    knobs = replace(knobs, max_num_batched_tokens=_chunk(request, step, places))
    used = footprint(model, request.accelerator, knobs, profile)
    blocks, max_model_len = _blocks(request, used, knobs)
    return Candidate(
        knobs=knobs,
        footprint=used,
        blocks=blocks,
        needed_blocks=math.ceil(request.needed_tokens / knobs.block_size),
        max_model_len=max_model_len,
        step=step,
        service=serve(
            step,
            workload,
            kv_tokens=blocks * knobs.block_size,
            block_size=knobs.block_size,
            max_num_seqs=places,
            chunk=knobs.max_num_batched_tokens,
        ),
        unavailable=_unavailable(request, weights, kv_cache),
    )


def _step_time(request: PlanRequest, knobs: Knobs, weights_total: int) -> StepTime | None:
    """Return the measured terms where there are some, for other formats in the ratio of the predicted ones."""
    model, profile, context = request.model, request.engine, request.workload.mean_context
    predicted = predict_step_time(model, request.accelerator, knobs, weights_total, profile, context)
    measured = request.measured
    if measured is None:
        return predicted
    as_measured = replace(knobs, weights=measured.weights, kv_cache=measured.kv_cache)
    measured_bytes = weights_bytes(
        model,
        quantization=measured.weights,
        compute_dtype=request.compute_dtype,
        tensor_parallel_size=request.count,
        copies_tied_head=profile.copies_tied_head,
    )
    reference = predict_step_time(model, request.accelerator, as_measured, measured_bytes, profile, context)
    return scale_step_time(measured.step, predicted, reference)


def _chunk(request: PlanRequest, step: StepTime | None, places: int) -> int:
    """Return max_num_batched_tokens: the most whose step stays within the inter-token objective, else the default."""
    if request.pinned.max_num_batched_tokens is not None:
        return request.pinned.max_num_batched_tokens
    itl_s = request.workload.itl_s
    if step is None or itl_s is None or not request.chooses_knobs:
        return max(request.engine.max_num_batched_tokens, places)
    tokens = max(0.0, itl_s - step.base_s) / step.prefill_token_s
    return max(CHUNK_STEP, places, min(LARGEST_CHUNK, int(tokens) // CHUNK_STEP * CHUNK_STEP))


def _blocks(request: PlanRequest, used: Footprint, knobs: Knobs) -> tuple[int, int]:
    """Return the blocks and the longest sequence: no more blocks than all places at full length can fill."""
    size = knobs.block_size
    affordable = max(0, used.kv_budget_bytes // used.block_bytes)
    context = request.model.architecture.context_length
    asked = request.pinned.max_model_len
    wanted = asked or min(context, max(request.workload.longest_context or context, request.needed_tokens))
    longest = min(wanted, affordable * size)
    return min(affordable, knobs.max_num_seqs * math.ceil(longest / size)), longest


def _unavailable(request: PlanRequest, weights: str, kv_cache: str) -> tuple[str, ...]:
    engine, architecture = request.engine, request.model.architecture
    missing = []
    if architecture.quantization not in engine.checkpoints:
        missing.append(f"checkpoints quantized with {architecture.quantization}")
    missing += [need for need in architecture.needs if need not in engine.features]
    if WEIGHT_FORMATS[weights].made_before and weights != architecture.quantization:
        missing.append(f"{weights} weights from a checkpoint that was not made so")
    elif weights not in (*engine.weights, architecture.quantization):
        missing.append(f"{weights} weights")
    if kv_cache not in engine.kv_cache:
        missing.append(f"{kv_cache} KV cache")
    if request.count > 1 and not engine.has_tensor_parallelism:
        missing.append("tensor parallelism")
    return tuple(missing)
