"""From flags to an engine that has computed something: download, load, measure, allocate, warm up."""

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import torch

from pagefleet.capacity.kv_formats import KV_FORMATS, format_of_flag, plain_blocks, resolve_kv_format
from pagefleet.engine import machine
from pagefleet.engine.activation_peak import measure_activations
from pagefleet.engine.allocator import release_free_heap
from pagefleet.engine.batching_policies import BatchingPolicyName
from pagefleet.engine.cache_plan import CachePlan, MemoryFacts, cache_budget_bytes, plan_cache
from pagefleet.engine.capacity_policies import CapacityPolicyName
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.core import EngineCore
from pagefleet.engine.decode_graphs import DecodeGraphs, capture_decodes
from pagefleet.engine.device import choose_device, choose_dtype
from pagefleet.engine.errors import StartupError
from pagefleet.engine.gguf_conversion import convert
from pagefleet.engine.kernels.choose import CACHE_DTYPES, check_cache_dtype, choose_attention
from pagefleet.engine.kernels.cpu.int8 import use_int8
from pagefleet.engine.kernels.cpu.pointwise import make_rms_norm
from pagefleet.engine.kernels.cpu.probe import use_linear_backend
from pagefleet.engine.kernels.int4 import round_linear, round_to_int4, use_int4_backend
from pagefleet.engine.kernels.interface import AttentionShape, PagedAttention
from pagefleet.engine.kernels.packed_format import PACKED_FORMATS
from pagefleet.engine.layers.linear import Linear
from pagefleet.engine.layers.quantized import TorchInt8Linear
from pagefleet.engine.memory_report import predict_memory
from pagefleet.engine.messages import AddRequest, CoreReady, MemoryParts, MemoryReport
from pagefleet.engine.model_source import ModelSource, resolve_model
from pagefleet.engine.models.interface import Model
from pagefleet.engine.models.registry import architecture_of, load_model
from pagefleet.engine.plain_slots import PlainSlots
from pagefleet.engine.quantization import check_checkpoint, check_quantization
from pagefleet.engine.runner import Runner
from pagefleet.engine.sampling_params import SamplingParameters
from pagefleet.engine.scheduler_limits import SchedulerLimits, SchedulingPolicy
from pagefleet.engine.stages import StageClock
from pagefleet.engine.transformers_setup import prepare_transformers
from pagefleet.engine.weights import load_config, read_json

DEFAULT_BUDGET_TOKENS = {"cpu": 512, "cuda": 2048}
"""A step of 2,048 tokens takes a CPU seconds, in which no decode advances."""

SAMPLING_COPIES = 6
"""Vocabulary-wide rows that the sampler holds per sequence, in units of 4 bytes: logits, weights, float64 sums."""


def start_engine(
    config: EngineConfig, clock: StageClock, *, attention_class: type[PagedAttention] | None = None
) -> EngineCore:
    """Bring the engine up to its first real forward pass; raises StartupError with the sentence for the user.

    `attention_class` None lets the configuration choose.
    """
    check_quantization(config.quantization, config.quantization_ignore)
    device = choose_device(config.device)
    torch.set_num_threads(config.threads or max(1, machine.usable_cores() - 1))
    with clock.stage("download") as report:
        source = resolve_model(config.model, report, revision=config.revision)
    with clock.stage("load"):
        prepare_transformers()
        source = convert(source)
        model_config = load_config(source)
        architecture = architecture_of(model_config)
        dtype = choose_dtype(config.dtype, model_config, device, is_quantized=source.is_quantized)
        model = load_model(
            model_config,
            source,
            dtype=dtype,
            device=device,
            model_impl=config.model_impl,
            prepare=partial(_round_early, config),
        )
        quantization = check_checkpoint(config.quantization, model.packed_method)
        linear_backend = _use_linear_backends(config, model, quantization)
        if linear_backend == "c":
            model.rms_norm = make_rms_norm(dtype)
        release_free_heap()
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what weights were converted in would count as used
    with clock.stage("measure"):
        budget_tokens = _budget_tokens(config, device)
        shape = _attention_shape(config, model, dtype, device)
        if attention_class is None:
            attention_class = choose_attention(config.attention_backend, shape, dtype)
        elif refusal := attention_class.unsupported(shape):
            raise StartupError(refusal)
        facts = _memory_facts(model, budget_tokens, config.max_num_seqs, device, dtype)
        facts = _with_measured_step(facts, model, attention_class(shape), config, budget_tokens)
        plan = _plan(config, model, shape, facts, budget_tokens)
    with clock.stage("allocate"):
        attention = attention_class(shape)
        attention.allocate(plan.blocks_total, plan.plain_slots)
    info = CoreReady(
        model=config.model,
        architecture=architecture,
        model_impl=model.implementation,
        device=str(device),
        dtype=_dtype_name(dtype),
        kv_cache_dtype=_dtype_name(shape.cache_dtype) if shape.packed is None else shape.packed.name,
        attention_backend=attention.name,
        linear_backend=linear_backend,
        quantization=quantization,
        vocabulary_size=model.vocabulary_size,
        max_model_len=plan.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=budget_tokens,
        block_size=shape.block_size,
        plain_slots=plan.plain_slots,
        blocks_total=plan.blocks_total,
        batching=config.batching,
        scheduling_policy=config.scheduling_policy,
        enable_prefix_caching=config.enable_prefix_caching,
        block_bytes=shape.bytes_per_block,
        kv_cache_bytes=plan.kv_cache_bytes,
        weight_bytes=model.weight_bytes,
        memory_limit_bytes=facts.limit,
        gpu_memory_utilization=config.gpu_memory_utilization,
        eos_token_ids=_end_tokens(model_config, source),
        stage_seconds=clock.seconds,  # the same dictionary: the warm-up below is added to it
        config_hash=config.config_hash,
    )
    with clock.stage("warm_up"):
        reserved_bytes = _reserved_bytes(device)
        graphs = capture_decodes(
            model,
            attention,
            max_num_seqs=config.max_num_seqs,
            max_model_len=plan.max_model_len,
            max_rows=budget_tokens,
        )
        graph_bytes = _reserved_bytes(device) - reserved_bytes
        _warm_up(_assemble(config, info, model, attention, graphs))
    info = msgspec.structs.replace(info, memory=_report_memory(source, info, facts, graph_bytes))
    return _assemble(config, info, model, attention, graphs)


def _assemble(
    config: EngineConfig, info: CoreReady, model: Model, attention: PagedAttention, graphs: DecodeGraphs | None
) -> EngineCore:
    """Join the parts into an engine with an empty cache and all counters at 0."""
    limits = SchedulerLimits(
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
        max_model_len=info.max_model_len,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        batching=msgspec.convert(config.batching, BatchingPolicyName),
        batching_timeout_s=config.batching_timeout_s,
        scheduling_policy=msgspec.convert(config.scheduling_policy, SchedulingPolicy),
        capacity_policy=msgspec.convert(config.capacity_policy, CapacityPolicyName),
        max_num_queued_reqs=config.max_num_queued_reqs,
        max_num_queued_tokens=config.max_num_queued_tokens,
        queue_ttft_target_s=config.queue_ttft_target_s,
    )
    plain_slots = None
    if attention.shape.packed is not None:
        plain_slots = PlainSlots(
            slots_total=info.plain_slots, blocks_total=info.blocks_total, sink_blocks=attention.shape.sink_blocks
        )
    runner = Runner(
        model,
        attention,
        device=attention.shape.device,
        eos_token_ids=frozenset(info.eos_token_ids),
        graphs=graphs,
        plain_slots=None if plain_slots is None else plain_slots.slot_of,
    )
    return EngineCore(
        info=info,
        limits=limits,
        runner=runner,
        attention=attention,
        keeps_cache_events=config.kv_events_endpoint is not None,
        plain_slots=plain_slots,
    )


def _round_early(config: EngineConfig, part: str, linear: Linear) -> None:
    """Round a linear to 4 bits beside no more than its own layer: a model need not fit before it is rounded."""
    if config.quantization == "int4" and part not in config.quantization_ignore:
        round_linear(linear)


def _use_linear_backends(config: EngineConfig, model: Model, quantization: str) -> str:
    """Give the linears, rounded where that is wanted, to the fastest back ends; returns the one of the layers."""

    def is_chosen(part: str, linear: Linear) -> bool:
        if model.packed_method is not None:
            return linear.weight is None
        return quantization != "none" and part not in config.quantization_ignore

    linears = list(model.linears())
    chosen = [linear for part, linear in linears if is_chosen(part, linear)]
    kept = [linear for part, linear in linears if not is_chosen(part, linear)]
    if quantization == "int4":
        kept += round_to_int4(chosen)
    # Triton has products with 4-bit weights alone.
    is_for_int4 = config.linear_backend == "triton" and quantization not in ("none", "int8")
    plain_backend = "auto" if is_for_int4 else config.linear_backend
    backend = use_linear_backend(plain_backend, kept) if kept or quantization == "none" else ""
    if quantization == "int8" or any(isinstance(linear.kernel, TorchInt8Linear) for linear in chosen):
        return use_int8(config.linear_backend, chosen)
    return backend if quantization == "none" else use_int4_backend(config.linear_backend, chosen)


def _budget_tokens(config: EngineConfig, device: torch.device) -> int:
    budget = config.max_num_batched_tokens or max(DEFAULT_BUDGET_TOKENS[device.type], config.max_num_seqs)
    if budget < config.max_num_seqs:
        raise StartupError(
            f"--max-num-batched-tokens {budget} is less than --max-num-seqs {config.max_num_seqs}, so that not every "
            f"sequence could advance in a step: use {config.max_num_seqs} or more"
        )
    return budget


def _attention_shape(config: EngineConfig, model: Model, dtype: torch.dtype, device: torch.device) -> AttentionShape:
    packed = PACKED_FORMATS.get(config.kv_cache_dtype)
    takes_compute_dtype = packed is not None or config.kv_cache_dtype == "auto"
    return AttentionShape(
        layers=len(model.layer_attention),
        query_heads=model.query_heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        scale=model.head_dim**-0.5,
        block_size=block_size_of(config),
        cache_dtype=dtype if takes_compute_dtype else CACHE_DTYPES[config.kv_cache_dtype],
        packed=packed,
        device=device,
        layer_attention=model.layer_attention,
    )


def block_size_of(config: EngineConfig) -> int:
    """Return the block size that is asked for, or the cache type's; raises StartupError where either is illegal."""
    check_cache_dtype(config.kv_cache_dtype)
    kept = KV_FORMATS[resolve_kv_format(format_of_flag(config.kv_cache_dtype), config.dtype)]
    size = config.block_size or kept.usual_block_size
    if size < kept.least_block_size or (kept.is_quantized and size % 16):
        legal = max(kept.least_block_size, -(-size // 16) * 16)
        raise StartupError(
            f"--block-size {size} is illegal with --kv-cache-dtype {config.kv_cache_dtype}, whose blocks are "
            f"multiples of 16 from {kept.least_block_size} on: use {legal}, or leave it out"
        )
    return size


def _memory_facts(
    model: Model, budget_tokens: int, max_num_seqs: int, device: torch.device, dtype: torch.dtype
) -> MemoryFacts:
    activations = (
        budget_tokens * model.activation_values_per_token * dtype.itemsize
        + max_num_seqs * model.vocabulary_size * 4 * SAMPLING_COPIES
    )
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return MemoryFacts(
            limit=total, available=free, used=torch.cuda.memory_reserved(device), activations=activations
        )
    return MemoryFacts(
        limit=machine.memory_limit_bytes(),
        available=machine.memory_available_bytes(),
        used=machine.memory_held_bytes(),
        activations=activations,
    )


def _with_measured_step(
    facts: MemoryFacts, model: Model, attention: PagedAttention, config: EngineConfig, budget_tokens: int
) -> MemoryFacts:
    """Replace what the widest step is thought to need by what one took, where this system tells.

    What it left in the process counts as used.
    """
    measured = measure_activations(
        model,
        attention,
        max_num_batched_tokens=budget_tokens,
        max_num_seqs=config.max_num_seqs,
        max_model_len=min(config.max_model_len or model.context_length, model.context_length),
    )
    if attention.shape.device.type == "cpu":
        facts = replace(facts, used=machine.memory_held_bytes(), available=machine.memory_available_bytes())
    return facts if measured is None else replace(facts, activations=measured)


def _reserved_bytes(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


def _report_memory(source: ModelSource, info: CoreReady, facts: MemoryFacts, graph_bytes: int) -> MemoryReport:
    """Split what was measured; on a GPU, what is used there and is not torch's counts as this process's runtime."""
    is_cuda = info.device.startswith("cuda")
    runtime_bytes = facts.limit - facts.available - facts.used if is_cuda else facts.used - info.weight_bytes
    measured = MemoryParts(
        weights_bytes=info.weight_bytes,
        activation_bytes=facts.activations,
        runtime_bytes=max(0, runtime_bytes),
        kv_cache_bytes=info.kv_cache_bytes,
        graph_bytes=graph_bytes,
    )
    return MemoryReport(measured=measured, predicted=predict_memory(source, info))


def _plan(
    config: EngineConfig, model: Model, shape: AttentionShape, facts: MemoryFacts, budget_tokens: int
) -> CachePlan:
    budget_bytes = cache_budget_bytes(
        facts, utilization=config.gpu_memory_utilization, override_bytes=config.kv_cache_memory_bytes
    )
    return plan_cache(
        budget_bytes,
        bytes_per_block=shape.bytes_per_block,
        plain_bytes_per_block=shape.plain_bytes_per_block,
        plain_slots=0
        if shape.packed is None
        else plain_blocks(
            sinks=shape.sink_blocks,
            block_size=shape.block_size,
            sequences=config.max_num_seqs,
            step_tokens=budget_tokens,
        ),
        block_size=shape.block_size,
        context_length=model.context_length,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
    )


def _warm_up(core: EngineCore) -> None:
    """Run one sequence through prefill and one decode, so that "ready" means that tokens come out."""
    tokens = min(32, core.info.max_model_len - 2)
    if tokens < 1:
        return
    core.add(
        AddRequest(
            request_id="warm-up",
            prompt_token_ids=[0] * tokens,
            sampling=SamplingParameters(max_tokens=2, temperature=0.0, ignore_eos=True),
        )
    )
    for step in core.steps():
        for output in step.outputs:
            if output.finish_reason == "error":
                raise StartupError("the model's first logits are not finite: the weights are damaged")


def _end_tokens(model_config: Any, source: ModelSource) -> list[int]:
    """Return the token ids that end a sequence: generation_config.json's and config.json's, as `generate` does."""
    found: set[int] = set()
    values = [getattr(model_config, "eos_token_id", None)]
    generation_file = source.folder / "generation_config.json"
    if source.gguf_file is None and generation_file.is_file():
        values.append(read_json(generation_file).get("eos_token_id"))
    for value in values:
        if isinstance(value, int):
            found.add(value)
        elif isinstance(value, list):
            found.update(int(item) for item in value)
    return sorted(found)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
