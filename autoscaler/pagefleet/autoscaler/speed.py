"""What a replica can do: the plan's step time, corrected by measured steps, or learned from them alone. Pure."""

import math
from collections.abc import Sequence
from dataclasses import replace

from pagefleet.autoscaler.settings import Settings
from pagefleet.autoscaler.snapshot import Reading
from pagefleet.autoscaler.state import State, StepsSeen
from pagefleet.capacity.step_fit import StepSample, fit_step_time
from pagefleet.capacity.step_time import OBJECTIVE_SHARE, StepTime, serve
from pagefleet.capacity.workload import Lengths, Workload

SCALE_BOUND = 0.4
"""A measured step time may move the one in use by this share."""
SCALE_WEIGHT = 0.05
"""Weight of one tick's measured step time."""
LEAST_STEPS = 10
"""Steps between two reports that tell a mean."""
LEAST_KINDS = 5
"""Kinds of steps that tell four terms apart, with one to spare."""
LEAST_SPAN = 2.0
"""Factor between the smallest and the largest batch that shows what a sequence costs."""
WORST_FIT = 0.25
"""Mean error, as a share, of terms that are still believed."""
SEEN_WEIGHT = 0.8
"""What a kind of step that is seen again keeps of what was seen before: a mean over five reports."""
SEEN_MEMORY_S = 3600.0
REFIT_S = 60.0


def service_rate(state: State, settings: Settings) -> float | None:
    """Return the requests per second that one replica serves within the objectives, for the lengths seen lately."""
    speed, step = settings.speed, step_in_use(state, settings)
    if speed is None or step is None:
        return None
    service = serve(
        step.times(state.time_scale),
        _workload(state, settings),
        kv_tokens=speed.kv_tokens,
        block_size=speed.block_size,
        max_num_seqs=speed.max_num_seqs,
        chunk=speed.max_num_batched_tokens,
    )
    return None if service.requests_per_s is None else service.requests_per_s / state.corrector


def step_in_use(state: State, settings: Settings) -> StepTime | None:
    """Return the plan's terms, or the learned ones where it has none; None until they are learned."""
    if settings.speed is None:
        return None
    return settings.speed.step or state.learned_step


def speed_source(state: State, settings: Settings) -> str | None:
    """Return where the speed comes from: `plan`, `corrected` or `learned`; None is not known."""
    if step_in_use(state, settings) is None:
        return None
    if settings.speed is not None and settings.speed.step is None:
        return "learned"
    return "corrected" if state.time_scale != 1.0 or state.corrector != 1.0 else "plan"


# ---- what even one request alone misses ----


def unreachable(state: State, settings: Settings) -> str | None:
    """Say which objective one request alone misses, by how much, and what would work; None where all can be met."""
    speed, step = settings.speed, step_in_use(state, settings)
    if speed is None or step is None:
        return None
    step, workload = step.times(state.time_scale), _workload(state, settings)
    prompt = workload.computed_prompt_tokens
    first_s = math.ceil(prompt / speed.max_num_batched_tokens) * step.base_s + step.prefill_token_s * prompt
    if settings.ttft_slo_s is not None and first_s > settings.ttft_slo_s:
        return (
            f"one request alone takes {first_s:.2g} s to the first token, {settings.ttft_slo_s:g} s asked; "
            f"write ttft: {math.ceil(10 * first_s + 1e-9) / 10:g}s or more"
        )
    if settings.itl_slo_s is None:
        return None
    gap_s = step.base_s + step.decode_s(workload.mean_context)
    # With others beside it each token also waits for its share of their prompts.
    least_s = (gap_s + step.prefill_token_s * prompt / workload.output_tokens.mean) / OBJECTIVE_SHARE
    if least_s <= settings.itl_slo_s:
        return None
    return (
        f"one request alone takes {1000 * gap_s:.3g} ms from token to token, {1000 * settings.itl_slo_s:g} ms asked; "
        f"write itl: {math.ceil(1000 * least_s)}ms or more"
    )


def _workload(state: State, settings: Settings) -> Workload:
    return Workload(
        prompt_tokens=Lengths(max(1.0, state.prompt_tokens or settings.prompt_tokens)),
        output_tokens=Lengths(max(1.0, state.output_tokens or settings.output_tokens)),
        shared_prefix=state.hit_share,
        itl_s=settings.itl_slo_s,
    )


# ---- learning ----


def learn_speed(reports: Sequence[tuple[Reading, Reading]], state: State, settings: Settings, now_s: float) -> State:
    """Compare the steps between pairs of reports of one engine with the terms in use, and learn those that lack."""
    if settings.speed is None:
        return state
    seen = [_between(before, now, now_s) for before, now in reports]
    if settings.speed.step is None:
        state = _learn_terms([steps for steps in seen if _is_mean(steps)], state, now_s)
    step = step_in_use(state, settings)
    return state if step is None else state.changed(time_scale=_scale(seen, step, state.time_scale))


def _between(before: Reading, now: Reading, now_s: float) -> StepsSeen:
    return StepsSeen(
        time_s=now_s,
        steps=now.steps_total - before.steps_total,
        prefill_tokens=now.computed_tokens_total - before.computed_tokens_total,
        kv_tokens=now.kv_tokens_read_total - before.kv_tokens_read_total,
        sequences=now.sequence_steps_total - before.sequence_steps_total,
        step_s=now.step_seconds_total - before.step_seconds_total,
    )


def _scale(seen: Sequence[StepsSeen], step: StepTime, scale: float) -> float:
    measured_s = sum(steps.step_s for steps in seen)
    predicted_s = sum(
        step.base_s * steps.steps
        + step.prefill_token_s * steps.prefill_tokens
        + step.kv_token_s * steps.kv_tokens
        + step.sequence_s * steps.sequences
        for steps in seen
    )
    if predicted_s <= 0 or measured_s <= 0:
        return scale
    found = min(max(measured_s / predicted_s, 1 - SCALE_BOUND), 1 + SCALE_BOUND)
    return scale + SCALE_WEIGHT * (found - scale)


def _is_mean(steps: StepsSeen) -> bool:
    return steps.steps >= LEAST_STEPS and min(steps[1:]) >= 0 and steps.step_s > 0


def _learn_terms(seen: Sequence[StepsSeen], state: State, now_s: float) -> State:
    """Keep one mean per kind of step, so that long hours of one load do not outweigh what tells the terms apart."""
    kept = {_kind(steps): steps for steps in state.steps_seen if steps.time_s >= now_s - SEEN_MEMORY_S}
    for steps in seen:
        before = kept.get(_kind(steps))
        kept[_kind(steps)] = steps if before is None else _merged(before, steps)
    state = state.changed(steps_seen=tuple(kept.values()))
    if state.learned_step is not None and now_s - state.learned_s < REFIT_S:
        return state
    fitted = _fit(state.steps_seen)
    return state if fitted is None else state.changed(learned_step=fitted, learned_s=now_s)


def _kind(steps: StepsSeen) -> tuple[int, int]:
    """Return the kind of a mean step: its batch by half powers of two, its prompt tokens by powers of two."""
    batch, prompt = steps.sequences / steps.steps, steps.prefill_tokens / steps.steps
    return round(2 * math.log2(1 + batch)), round(math.log2(1 + prompt))


def _merged(before: StepsSeen, now: StepsSeen) -> StepsSeen:
    sums = (SEEN_WEIGHT * one + other for one, other in zip(before[1:], now[1:], strict=True))
    return StepsSeen(now.time_s, *sums)


def _fit(seen: Sequence[StepsSeen]) -> StepTime | None:
    batches = [steps.sequences / steps.steps for steps in seen]
    if len(seen) < LEAST_KINDS or max(batches) < LEAST_SPAN * max(min(batches), 0.5):
        return None
    samples = [
        StepSample(
            prefill_tokens=steps.prefill_tokens / steps.steps,
            kv_tokens=steps.kv_tokens / steps.steps,
            sequences=steps.sequences / steps.steps,
            step_s=steps.step_s / steps.steps,
        )
        for steps in seen
    ]
    fit = fit_step_time(samples)
    error = sum(abs(residual) for residual in fit.residuals) / len(samples)
    is_usable = error <= WORST_FIT and fit.step.decode_s(1.0) + fit.step.base_s > 0
    return replace(fit.step, source="learned") if is_usable else None
