"""Set what the start measured beside what the planner predicts for the same model and settings."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from pagefleet.capacity import Accelerator, CannotPlan, ModelFacts, pagefleet_profile, read_model
from pagefleet.capacity.kv_formats import AUTO, format_of_flag, kv_block_bytes, resolve_kv_format
from pagefleet.capacity.memory import Knobs, footprint
from pagefleet.capacity.safetensors_header import LENGTH_BYTES, files_of_index, header_length, read_header
from pagefleet.capacity.text import bytes_text
from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.gather import GatherAttention
from pagefleet.engine.messages import CoreReady, MemoryParts, MemoryReport
from pagefleet.engine.model_source import ModelSource
from pagefleet.engine.weights import INDEX_FILE, SINGLE_FILE, read_json

MOST_DRIFT = 0.05
"""A prediction is right within this share."""

logger = logging.getLogger(__name__)


def predict_memory(source: ModelSource, info: CoreReady) -> MemoryParts | None:
    """Return the planner's prediction for an engine's settings and blocks; None for a model that it cannot read."""
    try:
        facts = read_facts(source)
        return _predict(facts, info)
    except (CannotPlan, StartupError, OSError, ValueError) as error:
        logger.info("memory is measured, not predicted: %s", error)
        return None


def read_facts(source: ModelSource) -> ModelFacts:
    """Read what the planner needs; raises CannotPlan, StartupError, OSError or ValueError."""
    if source.gguf_file is not None:
        raise CannotPlan("a GGUF file that was not converted has no safetensors headers; give the cache folder room")
    folder = source.folder
    index = folder / INDEX_FILE
    files = files_of_index(read_json(index)) if index.is_file() else [SINGLE_FILE]
    return read_model(folder.name, read_json(folder / "config.json"), [_header(folder / name) for name in files])


def _predict(facts: ModelFacts, info: CoreReady) -> MemoryParts:
    kind = info.device.partition(":")[0]
    profile = replace(
        pagefleet_profile(kind),
        copies_tied_head=info.linear_backend != "torch",
        keeps_capped_scores=info.attention_backend == GatherAttention.name,
    )
    knobs = Knobs(
        compute_dtype=info.dtype,
        weights=info.quantization,
        kv_cache=format_of_flag(info.kv_cache_dtype),
        block_size=info.block_size,
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
        gpu_memory_utilization=info.gpu_memory_utilization,
        tensor_parallel_size=1,
    )
    accelerator = Accelerator(name=info.device, kind=kind, memory_bytes=info.memory_limit_bytes)
    used = footprint(facts, accelerator, knobs, profile)
    plain = resolve_kv_format(AUTO, info.dtype)
    plain_block_bytes = kv_block_bytes(facts.architecture, plain, block_size=info.block_size)
    return MemoryParts(
        weights_bytes=used.weights_bytes,
        activation_bytes=used.activation_bytes,
        runtime_bytes=used.runtime_bytes,
        kv_cache_bytes=info.plain_slots * plain_block_bytes + info.blocks_total * used.block_bytes,
    )


def log_drift(report: MemoryReport) -> None:
    """Log how far measurement and prediction are apart: a warning beyond 5 %."""
    if report.predicted is not None and report.drift_ratio is not None:
        level = logging.WARNING if abs(report.drift_ratio) > MOST_DRIFT else logging.INFO
        logger.log(level, "%s", drift_sentence(report.measured, report.predicted, report.drift_ratio))


def drift_sentence(measured: MemoryParts, predicted: MemoryParts, drift: float) -> str:
    """Say what was measured and predicted, in all and by part."""
    parts = ", ".join(
        f"{name} {bytes_text(getattr(measured, field))} ({bytes_text(getattr(predicted, field))})"
        for name, field in (
            ("weights", "weights_bytes"),
            ("activations", "activation_bytes"),
            ("runtime", "runtime_bytes"),
            ("KV cache", "kv_cache_bytes"),
            ("graphs", "graph_bytes"),
        )
        if getattr(measured, field) or getattr(predicted, field)
    )
    return (
        f"memory is {bytes_text(measured.total_bytes)}, predicted were {bytes_text(predicted.total_bytes)} "
        f"({drift:+.1%}): {parts}"
    )


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        return read_header(stream.read(header_length(stream.read(LENGTH_BYTES))))
