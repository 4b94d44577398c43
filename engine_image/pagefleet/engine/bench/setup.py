"""What all offline benchmarks begin with: a model's folder, its workload, and settings that fit both."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from pagefleet.engine.bench.presets import PRESETS, preset_folder
from pagefleet.engine.bench.workload import BenchRequest, log_uniform_requests
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.errors import StartupError
from pagefleet.engine.gguf_conversion import convert
from pagefleet.engine.model_source import resolve_model
from pagefleet.engine.transformers_setup import prepare_transformers
from pagefleet.engine.weights import load_config


def model_folder(model: str, preset: str) -> Path:
    """Return the folder of a model, or of a preset when no model is named; raises StartupError."""
    prepare_transformers()
    if not model:
        if preset not in PRESETS:
            raise StartupError(f"--preset {preset} is unknown; use {', '.join(PRESETS)}")
        return preset_folder(preset)
    source = convert(resolve_model(model, lambda _: None))
    if source.gguf_file is not None:
        raise StartupError(f"{source.path} cannot be compared with transformers: give a folder with config.json")
    return source.folder


def workload_of(folder: Path, count: int) -> list[BenchRequest]:
    """Return the workload in the vocabulary of a folder's model."""
    config = load_config(resolve_model(str(folder), lambda _: None))
    return log_uniform_requests(config.get_text_config().vocab_size, count)


def context_length_of(folder: Path) -> int:
    """Return the tokens that a folder's model was made for."""
    config = load_config(resolve_model(str(folder), lambda _: None))
    return int(config.get_text_config().max_position_embeddings)


def fitted(config: EngineConfig, folder: Path, requests: Sequence[BenchRequest]) -> EngineConfig:
    """Return the settings with the folder as model and a cache that holds the longest request in every place."""
    return msgspec.structs.replace(
        config,
        model=str(folder),
        max_model_len=config.max_model_len or max(request.total_tokens for request in requests),
        max_num_seqs=min(config.max_num_seqs, len(requests)),
        max_num_queued_reqs=max(config.max_num_queued_reqs, len(requests)),
    )
