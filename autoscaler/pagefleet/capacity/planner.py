"""Make a capacity plan: judge every allowed choice, take the best that fits, say what limits it. Pure."""

from dataclasses import replace

from pagefleet.capacity.alternatives import (
    MINIMUM_GAIN,
    Formats,
    allowed_formats,
    fixes,
    near_misses,
    quality_of,
    rejected,
)
from pagefleet.capacity.candidate import Candidate, judge_most
from pagefleet.capacity.errors import DoesNotFit, ObjectiveOutOfReach
from pagefleet.capacity.judge import judge
from pagefleet.capacity.objective import LATENCY_SLACK, Objective
from pagefleet.capacity.plan import CapacityPlan
from pagefleet.capacity.quality import GateState
from pagefleet.capacity.reasons import explain, limit_sentence
from pagefleet.capacity.request import PlanRequest, check_request
from pagefleet.capacity.step_time import OBJECTIVE_SHARE
from pagefleet.capacity.text import bytes_text, count_text, time_text


def make_plan(request: PlanRequest) -> CapacityPlan:
    """Plan one replica.

    Raises DoesNotFit with numbers and a fix, ObjectiveOutOfReach, or CannotPlan where an input is wrong. What the
    user allows although the engine does not have it is taken only where nothing else is allowed, and named.
    """
    check_request(request)
    request = aim(request)
    judged = {formats: judge(request, *formats) for formats in allowed_formats(request)}
    chosen = _choose(request, judged)
    rate = request.workload.rate_per_s
    return CapacityPlan(
        model=request.model.name,
        accelerator=request.accelerator.name,
        engine=request.engine.name,
        objective=request.objective,
        knobs=chosen.knobs,
        max_model_len=chosen.max_model_len,
        blocks=chosen.blocks,
        footprint=chosen.footprint,
        step=chosen.step,
        service=chosen.service,
        limit=limit_sentence(request, chosen),
        replicas=None if rate is None else chosen.service.replicas_for(rate),
        choices=explain(request, chosen, judged),
        formats=tuple(quality_of(request, formats) for formats in judged),
        rejected=rejected(request, chosen, judged),
        near_misses=near_misses(request, chosen, judged),
        unavailable=chosen.unavailable,
    )


def aim(request: PlanRequest) -> PlanRequest:
    """Return a request with an objective for the time between tokens, where speed is wanted and none was given."""
    workload = request.workload
    if request.objective is not Objective.LATENCY or workload.itl_s is not None or not request.chooses_knobs:
        return request
    step = judge_most(request, *allowed_formats(request)[0]).step
    if step is None:
        return request
    prefill_s = step.prefill_token_s * workload.computed_prompt_tokens / workload.output_tokens.mean
    alone_s = step.base_s + prefill_s + step.decode_s(workload.mean_context)
    return replace(request, workload=replace(workload, itl_s=LATENCY_SLACK * alone_s))


def _choose(request: PlanRequest, judged: dict[Formats, Candidate]) -> Candidate:
    """Return the best choice; raises DoesNotFit or ObjectiveOutOfReach when there is none."""
    available = {formats: each for formats, each in judged.items() if not each.unavailable} or judged
    has_failed = {formats: quality_of(request, formats).state is GateState.FAILED for formats in available}
    candidates = [each for formats, each in available.items() if not has_failed[formats]] or list(available.values())
    fitting = [each for each in candidates if each.fits]
    if not fitting:
        raise _does_not_fit(request, min(candidates, key=lambda each: each.needed_bytes))
    in_time = [each for each in fitting if each.service.concurrency >= 1]
    if not in_time:
        raise _out_of_reach(request, fitting[0])
    best = in_time[0]
    for candidate in in_time[1:]:  # from the most accurate on, so that accuracy is given up for a real gain alone
        if candidate.score >= MINIMUM_GAIN * best.score:
            best = candidate
    return best


def _does_not_fit(request: PlanRequest, closest: Candidate) -> DoesNotFit:
    used, count = closest.footprint, request.count
    cache_bytes = closest.needed_blocks * used.block_bytes + used.kv_reserve_bytes
    where = request.accelerator.name if count == 1 else f"{count} x {request.accelerator.name}"
    return DoesNotFit(
        f"{request.model.name} does not fit {where}: weights {bytes_text(used.weights_bytes)}, activations "
        f"{bytes_text(used.activation_bytes)}, runtime {bytes_text(used.runtime_bytes)} and a cache for "
        f"{count_text(request.needed_tokens)} tokens {bytes_text(cache_bytes)} make "
        f"{bytes_text(closest.needed_bytes)}; "
        f"{request.gpu_memory_utilization:g} of {bytes_text(used.memory_bytes)} is {bytes_text(used.usable_bytes)}.",
        needed_bytes=closest.needed_bytes,
        usable_bytes=used.usable_bytes,
        fixes=fixes(request, closest),
    )


def _out_of_reach(request: PlanRequest, candidate: Candidate) -> ObjectiveOutOfReach:
    workload, step, name = request.workload, candidate.step, candidate.service.binding_limit
    objective_s = workload.itl_s if name == "inter-token latency" else workload.ttft_s
    if step is None or objective_s is None:  # memory alone: one sequence fits, or `fits` were false
        raise AssertionError("a fitting candidate below one sequence has a latency limit")
    # The limit is linear in the objective: what it lacks to one sequence is what one sequence adds.
    prompt, decode_s = workload.computed_prompt_tokens, step.decode_s(workload.mean_context)
    if name == "inter-token latency":
        least_s = step.base_s + step.prefill_token_s * prompt / workload.output_tokens.mean + decode_s
    else:
        steps = workload.prefill_steps(candidate.knobs.max_num_batched_tokens)
        least_s = steps * (step.base_s + decode_s) + step.prefill_token_s * prompt
    works_ms = int(least_s / OBJECTIVE_SHARE * 1e3) + 1
    return ObjectiveOutOfReach(
        f"the {name} of {time_text(objective_s)} cannot be kept on {request.accelerator.name}, where one request alone "
        f"takes {time_text(least_s)}: write {works_ms} ms or more, or use a faster accelerator",
        objective=name,
        least_s=least_s,
    )
