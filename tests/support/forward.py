"""Run a model of the engine by hand: known tokens in, the logits of every position out."""

from pathlib import Path
from typing import Any

import torch

from pagefleet.engine.kernels.gather import GatherAttention
from pagefleet.engine.kernels.interface import AttentionBatch, AttentionShape
from pagefleet.engine.model_source import resolve_model
from pagefleet.engine.models.interface import Model
from pagefleet.engine.models.registry import load_model
from pagefleet.engine.weights import load_config

BLOCK_SIZE = 8


def load_engine_model(folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> Model:
    """Load a checkpoint's model as the engine does."""
    source = resolve_model(str(folder), lambda _: None)
    return load_model(load_config(source), source, dtype=dtype, device=torch.device("cpu"), **options)


@torch.inference_mode()
def teacher_forced_logits(
    model: Model, prompts: list[list[int]], *, chunk: int, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """Return [tokens, vocabulary] logits of each prompt; all go in together, each in chunks of its own size or less."""
    longest = -(-max(len(prompt) for prompt in prompts) // BLOCK_SIZE)
    attention = GatherAttention(
        AttentionShape(
            layers=len(model.layer_attention),
            query_heads=model.query_heads,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            scale=model.head_dim**-0.5,
            block_size=BLOCK_SIZE,
            cache_dtype=dtype,
            device=torch.device("cpu"),
            layer_attention=model.layer_attention,
        )
    )
    attention.allocate(longest * len(prompts))
    tables = [list(range(index, longest * len(prompts), len(prompts))) for index in range(len(prompts))]
    parts: list[list[torch.Tensor]] = [[] for _ in prompts]
    for start in range(0, max(len(prompt) for prompt in prompts), chunk):
        active = [index for index, prompt in enumerate(prompts) if len(prompt) > start]
        spans = [(index, start, min(start + chunk, len(prompts[index]))) for index in active]
        ids = torch.tensor([token for index, first, end in spans for token in prompts[index][first:end]])
        batch = _batch(spans, tables)
        attention.begin_step(batch)
        logits = model.logits(model.forward(ids, batch.positions, attention))
        for index, rows in zip(active, torch.split(logits, batch.query_lengths), strict=True):
            parts[index].append(rows)
    return [torch.cat(rows) for rows in parts]


def _batch(spans: list[tuple[int, int, int]], tables: list[list[int]]) -> AttentionBatch:
    placed = [(index, position) for index, first, end in spans for position in range(first, end)]
    return AttentionBatch(
        positions=torch.tensor([position for _, position in placed]),
        slots=torch.tensor(
            [tables[index][position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE for index, position in placed]
        ),
        query_lengths=[end - first for _, first, end in spans],
        context_lengths=[end for _, _, end in spans],
        block_tables=[tables[index] for index, _, _ in spans],
    )
