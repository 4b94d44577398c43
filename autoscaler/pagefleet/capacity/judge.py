"""Judge one choice of formats for an objective: what serves most, or the least memory that serves the load.

The load of a replica, for the objective memory, is

1. its share of the stated rate       among the fewest replicas that serve it
2. no rate, but max_num_seqs is set   as many sequences at once as that, or as there can be
3. neither                            the sequences that the cache for one of the longest length holds anyway
"""

import math
from dataclasses import replace

from pagefleet.capacity.candidate import CHUNK_STEP, Candidate, Load, judge_most, judge_places, places_of
from pagefleet.capacity.objective import MEMORY_MARGIN, Objective
from pagefleet.capacity.request import PinnedKnobs, PlanRequest
from pagefleet.capacity.step_time import KV_SHARE, LOAD_SHARE, rounded_context


def judge(request: PlanRequest, weights: str, kv_cache: str) -> Candidate:
    """Choose the other knobs for two formats and predict what follows. It may not fit, or meet no objective."""
    most = judge_most(request, weights, kv_cache)
    if request.objective is not Objective.MEMORY or not request.chooses_knobs:
        return most
    return _spare(request, most) if most.fits and most.service.concurrency >= 1 else most


def _spare(request: PlanRequest, most: Candidate) -> Candidate:
    """Return the least that serves the load, from what serves most with the same formats."""
    load = _load(request, most)
    pinned = request.pinned
    places = next((one for one in places_of(request) if one >= load.sequences), most.knobs.max_num_seqs)
    for chunk in _chunks(request, load, places, most.knobs.max_num_batched_tokens):
        narrowed = replace(pinned, max_num_seqs=places, max_num_batched_tokens=chunk)
        found = _with_least_memory(request, narrowed, most, load)
        if found.service.concurrency >= load.sequences:
            return found
    return replace(most, load=load)  # the time to the first token needs the whole step


def _load(request: PlanRequest, most: Candidate) -> Load:
    service, workload = most.service, request.workload
    rate = workload.rate_per_s
    replicas = None if rate is None else service.replicas_for(rate)
    if rate is not None and replicas is not None and most.step is not None:
        step, outputs = most.step, workload.output_tokens.mean
        # What `serve` computes the rate from, solved for the sequences that share each step's base.
        alone_s = step.prefill_token_s * workload.computed_prompt_tokens + outputs * step.decode_s(
            workload.mean_context
        )
        shared_s = LOAD_SHARE * replicas / rate - alone_s
        sequences = outputs * step.base_s / shared_s if shared_s > 0 else service.concurrency
        return Load(replicas, min(service.concurrency, max(1.0, sequences)))
    held = request.pinned.max_num_seqs
    if held is None:
        held = math.floor(KV_SHARE * most.max_model_len / rounded_context(workload, most.knobs.block_size))
    return Load(1, min(service.concurrency, max(1.0, held)))


def _chunks(request: PlanRequest, load: Load, places: int, widest: int) -> list[int]:
    """Return the values of max_num_batched_tokens to choose from: ascending, from what keeps up with the prompts on."""
    if request.pinned.max_num_batched_tokens is not None:
        return [request.pinned.max_num_batched_tokens]
    workload = request.workload
    each_step = load.sequences * (1 + workload.computed_prompt_tokens / workload.output_tokens.mean)
    chunk = max(places, math.ceil(each_step / CHUNK_STEP) * CHUNK_STEP)
    found = []
    while chunk < widest:
        found.append(chunk)
        chunk *= 2
    return [*found, max(widest, places)]


def _with_least_memory(request: PlanRequest, pinned: PinnedKnobs, most: Candidate, load: Load) -> Candidate:
    """Judge pinned places and steps with the least share of memory that holds the load and one longest sequence."""
    knobs, workload = most.knobs, request.workload

    def judged(pinned: PinnedKnobs) -> Candidate:
        places = pinned.max_num_seqs or knobs.max_num_seqs
        found = judge_places(replace(request, pinned=pinned), knobs.weights, knobs.kv_cache, places)
        return replace(found, load=load)

    found = judged(pinned)
    if pinned.gpu_memory_utilization is not None:
        return found
    held_tokens = load.sequences * rounded_context(workload, knobs.block_size) / KV_SHARE
    blocks = math.ceil(max(held_tokens, most.max_model_len) / knobs.block_size)
    needed_bytes = MEMORY_MARGIN * (found.footprint.fixed_bytes + blocks * found.footprint.block_bytes)
    share = math.ceil(1000 * needed_bytes / found.footprint.memory_bytes) / 1000
    return judged(replace(pinned, gpu_memory_utilization=min(share, request.gpu_memory_utilization)))
