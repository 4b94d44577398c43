"""What else could be done: formats that were not taken, and what would make a model fit that does not."""

from dataclasses import replace

from pagefleet.capacity.accelerators import ACCELERATORS, GIB
from pagefleet.capacity.candidate import Candidate
from pagefleet.capacity.errors import CannotPlan
from pagefleet.capacity.judge import judge
from pagefleet.capacity.kv_formats import AUTO, KV_FORMATS, check_block_size, resolve_kv_format
from pagefleet.capacity.plan import Alternative
from pagefleet.capacity.quality import FormatQuality, GateState, is_plain_cache
from pagefleet.capacity.request import Allowed, PlanRequest
from pagefleet.capacity.text import bytes_text, count_text
from pagefleet.capacity.weight_formats import WEIGHT_FORMATS

MINIMUM_GAIN = 1.1
"""Less than 10 % more is within the error of the prediction, and no reason to give up accuracy."""
MOST_ACCELERATORS = 16
MOST_FORMAT_FIXES = 3
"""Of those that change no hardware: a sentence with all of them is not read."""

Formats = tuple[str, str]
"""A weight format and a cache format."""


def allowed_formats(request: PlanRequest) -> list[Formats]:
    """Return what may be chosen, the most accurate first: what the user allows, and what has passed its gate."""
    allowed = request.allowed
    plain = resolve_kv_format(AUTO, request.compute_dtype)
    kv_cache = {resolve_kv_format(name, request.compute_dtype) for name in allowed.kv_cache}

    def may_be_chosen(weights: str, name: str) -> bool:
        is_named = weights in allowed.weights, name in kv_cache
        if all(is_named):
            return True
        if (allowed.weights_are_fixed and not is_named[0]) or (allowed.kv_cache_is_fixed and not is_named[1]):
            return False
        # Of the plain caches, a result of rounded weights brings the usual one alone.
        is_cache_of_result = name == plain or not is_plain_cache(name)
        has_passed = quality_of(request, (weights, name)).state is GateState.PASSED
        return has_passed and is_cache_of_result and _is_legal(request, name)

    return [(weights, name) for weights in WEIGHT_FORMATS for name in KV_FORMATS if may_be_chosen(weights, name)]


def quality_of(request: PlanRequest, formats: Formats) -> FormatQuality:
    """Return what is known of the answers of two formats."""
    return request.gate.judge(*formats, checkpoint=request.model.architecture.quantization)


def near_misses(request: PlanRequest, chosen: Candidate, judged: dict[Formats, Candidate]) -> tuple[Alternative, ...]:
    """Return one changed format at a time that would serve at least a tenth more, with what is in its way."""
    knobs, found = chosen.knobs, []
    quantization = request.model.architecture.quantization
    for formats in (
        *((knobs.weights, name) for name in KV_FORMATS),
        *(
            (name, knobs.kv_cache)
            for name, kept in WEIGHT_FORMATS.items()
            if not kept.made_before or name == quantization
        ),
    ):
        other = None if formats in judged else _judge_if_legal(request, *formats)
        if other is not None and other.fits and other.score >= MINIMUM_GAIN * chosen.score:
            found.append(
                Alternative(_change(chosen, formats), _effect(chosen, other), _obstacle(request, other, formats))
            )
    return tuple(found)


def rejected(request: PlanRequest, chosen: Candidate, judged: dict[Formats, Candidate]) -> tuple[Alternative, ...]:
    """Return what was allowed and not taken, with the reason."""
    return tuple(
        Alternative(_change(chosen, formats), _effect(chosen, other), _reason(request, chosen, other, formats))
        for formats, other in judged.items()
        if other is not chosen
    )


def fixes(request: PlanRequest, closest: Candidate) -> tuple[str, ...]:
    """Return what would make a model fit: first what works today, then what this engine does not have yet."""
    now: list[str] = []
    later: list[str] = []
    shorter = closest.footprint.kv_budget_bytes // closest.footprint.block_bytes * closest.knobs.block_size
    mean = round(request.workload.prompt_tokens.mean + request.workload.output_tokens.mean)
    if request.pinned.max_model_len is not None and shorter >= mean:
        now.append(f"write a max_model_len of {shorter} or less")
    own = allowed_formats(request)
    for formats in _other_formats(request, closest):
        other = _judge_if_legal(request, *formats)
        quality = quality_of(request, formats)
        has_failed = quality.state is GateState.FAILED
        if other is not None and other.fits and (formats not in own or other.unavailable or has_failed):
            verb = "use" if formats in own else "allow"
            but = _not_yet(other) or (f" ({quality.words})" if has_failed else "")
            (later if other.unavailable else now).append(f"{verb} {_change(closest, formats)}{but}")
    now, later = now[:MOST_FORMAT_FIXES], later[:1]
    now.append(_larger_memory(request, closest))
    later += _more_accelerators(request)
    return (*now, *later)


def _other_formats(request: PlanRequest, closest: Candidate) -> list[Formats]:
    """Return every choice but the closest that the checkpoint permits: one changed format first, then both."""
    everything = replace(request, allowed=Allowed(weights=tuple(WEIGHT_FORMATS), kv_cache=tuple(KV_FORMATS)))
    quantization = request.model.architecture.quantization
    possible = [
        each
        for each in allowed_formats(everything)
        if not WEIGHT_FORMATS[each[0]].made_before or each[0] == quantization
    ]
    knobs = closest.knobs
    changes = {each: (each[0] != knobs.weights) + (each[1] != knobs.kv_cache) for each in possible}
    return sorted((each for each in possible if changes[each]), key=lambda each: changes[each])


def _judge_if_legal(request: PlanRequest, weights: str, kv_cache: str) -> Candidate | None:
    """Judge two formats; None where the user's block size is illegal for them."""
    return judge(request, weights, kv_cache) if _is_legal(request, kv_cache) else None


def _is_legal(request: PlanRequest, kv_cache: str) -> bool:
    if request.pinned.block_size is not None:
        try:
            check_block_size(kv_cache, request.pinned.block_size)
        except CannotPlan:
            return False
    return True


def _larger_memory(request: PlanRequest, closest: Candidate) -> str:
    needed = closest.needed_bytes / request.gpu_memory_utilization
    least_gib = int(needed / GIB * 10 + 1) / 10
    fitting = [each for each in ACCELERATORS.values() if (each.memory_bytes or 0) >= needed]
    if request.accelerator.kind == "cpu" or not fitting:
        return f"give each accelerator {least_gib:g} GiB or more"
    smallest = min(fitting, key=lambda each: each.memory_bytes or 0)
    return f"use an accelerator with {least_gib:g} GiB or more, such as {smallest.name}"


def _more_accelerators(request: PlanRequest) -> list[str]:
    heads = request.model.architecture.query_heads
    for count in range(request.count + 1, MOST_ACCELERATORS + 1):
        if heads % count or request.accelerator.kind == "cpu":
            continue
        more = replace(request, count=count)
        for formats in allowed_formats(request):
            candidate = judge(more, *formats)
            if candidate.fits:
                return [f"share it among {count} accelerators{_not_yet(candidate)}"]
    return []


def _change(chosen: Candidate, formats: Formats) -> str:
    weights, kv_cache = formats
    parts = []
    if kv_cache != chosen.knobs.kv_cache:
        parts.append(f"KV cache {kv_cache}")
    if weights != chosen.knobs.weights:
        parts.append(f"weights {weights}")
    return " and ".join(parts)


def _effect(chosen: Candidate, other: Candidate) -> str:
    if not other.fits:
        return f"needs {bytes_text(other.needed_bytes)} of {bytes_text(other.footprint.usable_bytes)}"
    if other.load is not None and chosen.load is not None:
        replicas = "" if other.load.replicas == 1 else f"{other.load.replicas} replicas of "
        return f"{replicas}{bytes_text(other.predicted_bytes)}, {chosen.score / other.score:.2f} x the memory"
    tokens = other.blocks * other.knobs.block_size
    ratio = other.score / chosen.score if chosen.score else 1.0
    what = "requests/s" if other.service.requests_per_s is not None else "sequences at once"
    return f"{count_text(tokens)} KV tokens, {ratio:.2f} x the {what}"


def _obstacle(request: PlanRequest, other: Candidate, formats: Formats) -> str:
    if other.unavailable:
        return f"not in this engine yet: {', '.join(other.unavailable)}"
    quality = quality_of(request, formats)
    match quality.state:
        case GateState.PLAIN:
            return "allow it first"
        case GateState.NOT_RUN:
            return "loses some accuracy: needs quality gate, or allow it"
        case _:
            return f"{quality.words}: allow it first"


def _reason(request: PlanRequest, chosen: Candidate, other: Candidate, formats: Formats) -> str:
    if other.unavailable and not chosen.unavailable:
        return f"not in this engine yet: {', '.join(other.unavailable)}"
    quality = quality_of(request, formats)
    if quality.state is GateState.FAILED:
        return quality.words
    if not other.fits:
        return "does not fit"
    if other.score >= chosen.score:
        return "gains less than 10 %, and loses more accuracy"
    return "serves less" if other.load is None else "takes more memory"


def _not_yet(candidate: Candidate) -> str:
    return f" (not in this engine yet: {', '.join(candidate.unavailable)})" if candidate.unavailable else ""
