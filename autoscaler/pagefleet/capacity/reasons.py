"""Why each knob has its value: one sentence with the numbers behind it."""

from collections.abc import Iterable

from pagefleet.capacity.alternatives import Formats, quality_of
from pagefleet.capacity.candidate import Candidate, Load
from pagefleet.capacity.kv_formats import KV_FORMATS, flag_word, resolve_kv_format
from pagefleet.capacity.objective import MEMORY_MARGIN
from pagefleet.capacity.plan import Choice
from pagefleet.capacity.quality import GateState, is_plain
from pagefleet.capacity.request import PlanRequest
from pagefleet.capacity.step_time import LOAD_SHARE, OBJECTIVE_SHARE
from pagefleet.capacity.text import bytes_text, count_text, time_text

YOURS = "you set it"
DEFAULT = "the engine's default"


def explain(request: PlanRequest, chosen: Candidate, judged: Iterable[Formats]) -> tuple[Choice, ...]:
    """Return the knobs of a plan with their reasons, in the order in which they are decided, from what was judged."""
    knobs, pinned = chosen.knobs, request.pinned
    weights, kv_cache = _offered(request, judged)
    speed = _speed_evidence(request, chosen)
    return (
        Choice("dtype", knobs.compute_dtype, _dtype(request)),
        Choice(
            "quantization",
            knobs.weights,
            _format(chosen, weights, "the checkpoint's own precision"),
            _format_evidence(request, chosen, speed if len(weights) > 1 else "", (knobs.weights, "auto")),
        ),
        Choice(
            "kv-cache-dtype",
            flag_word(knobs.kv_cache),
            _format(chosen, kv_cache, "the precision of the model"),
            _format_evidence(request, chosen, speed if len(kv_cache) > 1 else "", ("none", knobs.kv_cache)),
        ),
        Choice("block-size", str(knobs.block_size), _block_size(request, chosen)),
        Choice("gpu-memory-utilization", f"{knobs.gpu_memory_utilization:g}", _utilization(request, chosen)),
        Choice("max-model-len", str(chosen.max_model_len), _max_model_len(request, chosen)),
        Choice(
            "max-num-seqs",
            str(knobs.max_num_seqs),
            _max_num_seqs(request, chosen),
            speed if pinned.max_num_seqs is None else "",
        ),
        Choice(
            "max-num-batched-tokens",
            str(knobs.max_num_batched_tokens),
            _chunk(request, chosen),
            speed if pinned.max_num_batched_tokens is None and request.workload.itl_s is not None else "",
        ),
    )


def _offered(request: PlanRequest, judged: Iterable[Formats]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the weight formats and the cache formats that were compared, in the user's words where he has them."""
    words = {resolve_kv_format(name, request.compute_dtype): name for name in request.allowed.kv_cache}
    pairs = [(weights, words.get(name, name)) for weights, name in judged]
    weights, kv_cache = (tuple(dict.fromkeys(names)) for names in zip(*pairs, strict=True))
    return weights, kv_cache


def _speed_evidence(request: PlanRequest, chosen: Candidate) -> str:
    """Return what the choice of a knob by its speed rests on; nothing where it is no choice."""
    if not request.chooses_knobs or chosen.step is None:
        return ""
    return "measured" if chosen.step.source == "measured" else "predicted"


def _format_evidence(request: PlanRequest, chosen: Candidate, speed: str, alone: Formats) -> str:
    """Return what a format rests on: how fast it is, and its quality gate unless it is `alone` what changes nothing."""
    checkpoint = request.model.architecture.quantization
    quality = quality_of(request, (chosen.knobs.weights, chosen.knobs.kv_cache))
    changes_answers = quality.state is not GateState.PLAIN and not is_plain(*alone, checkpoint=checkpoint)
    return ", ".join(filter(None, (speed, quality.words if changes_answers else "")))


def _dtype(request: PlanRequest) -> str:
    stored = request.model.architecture.stored_dtype
    if request.dtype != "auto":
        return YOURS
    if request.compute_dtype == "float32" and stored != "float32":
        return f"{request.accelerator.name} has no fast bfloat16"
    return f"the checkpoint is in {stored}" + (
        "" if stored == request.compute_dtype else ", and the engine converts it"
    )


def _format(chosen: Candidate, allowed: tuple[str, ...], own: str) -> str:
    if len(allowed) == 1:
        return own if allowed[0] in ("none", "auto") else "the one that you allow"
    best = "serves most" if chosen.load is None else "takes least memory"
    return f"{best} of {', '.join(allowed)}, or within 10 % of it with less loss"


def _block_size(request: PlanRequest, chosen: Candidate) -> str:
    size = chosen.knobs.block_size
    waste = size / 2 / request.workload.mean_context
    wasted = f"the last block of a sequence wastes {waste:.1%} of its cache on average"
    if request.pinned.block_size is not None:
        return f"{YOURS}; {wasted}"
    if KV_FORMATS[chosen.knobs.kv_cache].is_quantized:
        return f"so that the metadata that {chosen.knobs.kv_cache} keys share per block is small; {wasted}"
    return f"the smallest: {wasted}"


def _utilization(request: PlanRequest, chosen: Candidate) -> str:
    share = chosen.knobs.gpu_memory_utilization
    left = f"{bytes_text((request.accelerator.memory_bytes or 0) * (1 - share))} stay free"
    if request.pinned.gpu_memory_utilization is not None:
        return f"{YOURS}; {left}"
    if share < request.gpu_memory_utilization:
        return f"the least that holds the load, with {MEMORY_MARGIN - 1:.0%} for what was predicted too low; {left}"
    return f"{DEFAULT}; {left} for the driver, fragmentation and what was predicted too low"


def _max_model_len(request: PlanRequest, chosen: Candidate) -> str:
    context = request.model.architecture.context_length
    if request.pinned.max_model_len is not None:
        return YOURS
    if chosen.max_model_len == context:
        return "the model's context"
    if chosen.max_model_len == request.workload.longest_context:
        return f"99.9 % of requests are no longer; the model's context is {context}"
    return f"all that the cache holds; the model's context is {context}"


def _max_num_seqs(request: PlanRequest, chosen: Candidate) -> str:
    service = chosen.service
    if request.pinned.max_num_seqs is not None:
        return YOURS
    if not request.chooses_knobs:
        return f"{DEFAULT}; each place costs memory"
    if chosen.load is not None:
        return f"the next power of two: {_load(request, chosen, chosen.load)}"
    others = {name: value for name, value in service.limits.items() if name != "max_num_seqs"}
    name = min(others, key=lambda each: others[each])
    return f"the next power of two: {name} allows {count_text(others[name])} at once, and each place costs memory"


def _load(request: PlanRequest, chosen: Candidate, load: Load) -> str:
    rate, at_once = request.workload.rate_per_s, f"{count_text(load.sequences)} at once"
    if rate is not None and chosen.step is not None:
        return f"{at_once} serve {rate / load.replicas:.3g} requests/s with a reserve of {1 - LOAD_SHARE:.0%}"
    return (
        f"{at_once} are in a cache for one sequence of {count_text(chosen.max_model_len)} tokens, and no rate is given"
    )


def _chunk(request: PlanRequest, chosen: Candidate) -> str:
    itl_s, step, chunk = request.workload.itl_s, chosen.step, chosen.knobs.max_num_batched_tokens
    is_yours = request.pinned.max_num_batched_tokens is not None
    if chosen.load is not None and not is_yours:
        keeps_up = f"the prompts of {count_text(chosen.load.sequences)} sequences keep up"
        return f"the fewest with which {keeps_up} and the objectives are met; each costs memory"
    if step is None:
        return YOURS if is_yours else DEFAULT
    takes = f"a step with so many prompt tokens takes {time_text(step.base_s + chunk * step.prefill_token_s)}"
    if is_yours:
        return f"{YOURS}; {takes}"
    if not request.chooses_knobs:
        return f"{DEFAULT}; {takes}"
    if itl_s is None:
        return f"{DEFAULT}, as there is no inter-token objective; {takes}"
    if step.base_s + chunk * step.prefill_token_s > itl_s:
        return f"the fewest that are planned; {takes}, so prompts delay answers beyond {time_text(itl_s)}"
    return f"the most within the inter-token objective of {time_text(itl_s)}; {takes}"


def limit_sentence(request: PlanRequest, chosen: Candidate) -> str:
    """Return what keeps a replica from serving more, in one sentence."""
    service, workload = chosen.service, request.workload
    at_once = f"{count_text(service.concurrency)} sequences at once"
    context = f"a mean context of {count_text(workload.mean_context)} tokens"
    match service.binding_limit:
        case "KV memory":
            return f"KV memory: the cache holds {at_once} of {context}, bursts apart"
        case "max_num_seqs":
            others = "more would raise the rate by less than 1 %" if request.chooses_knobs else DEFAULT
            others = "the load needs no more" if chosen.load is not None else others
            others = YOURS if request.pinned.max_num_seqs else others
            return f"max_num_seqs: {at_once}; {others}"
        case name:
            objective_s = workload.itl_s if name == "inter-token latency" else workload.ttft_s
            return (
                f"{name}: {at_once} keep the mean within {OBJECTIVE_SHARE:.0%} of {time_text(objective_s or 0)}; "
                f"KV memory would hold {count_text(service.limits['KV memory'])}"
            )
