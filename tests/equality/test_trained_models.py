"""Trained models: their known greedy continuations, and transformers' computed now."""

from pathlib import Path

import pytest
import torch

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.gguf_cache import cached_conversion
from pagefleet.engine.llm import LLM
from pagefleet.engine.model_source import resolve_model
from pagefleet.engine.sampling_params import SamplingParameters
from tests.equality.oracle import reference_logits, reference_tokens
from tests.support.forward import load_engine_model, teacher_forced_logits
from tests.support.models import smollm2, stories260k
from tests.support.tiny_models import make_tiny_llama

# Greedy continuations of SmolLM2-135M-Instruct in float32, no begin token added.
GOLDEN = {
    "The capital of France is": (
        [504, 3575, 282, 4649, 314],
        "7042 30 198 198 504 2988 314 42 216 34 32 33 40 29 32 33 29 34 34 216 33 34 42 33",
    ),
    "Once upon a time": (
        [6403, 1980, 253, 655],
        "28 260 2240 282 23324 27108 436 253 15114 39228 28 351 25854 41658 284 14055 9018 30 1249 347 260 929 3514 "
        "411",
    ),
    "Water boils at": (
        [12615, 36411, 418],
        "216 33 32 32 4742 51 28 527 314 253 3468 20590 30 198 198 504 6714 282 260 2817 5118 288 260 2817",
    ),
}

STORY_START = (
    ", there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, red ball. "
    "She wanted to play with it, but it was too high."
)


@pytest.mark.real_model
def test_smollm2_golden_rows_and_transformers() -> None:
    config = EngineConfig(model=smollm2(), dtype="float32", kv_cache_memory_bytes=2**28, threads=1)
    llm = LLM(config)
    prompts = [prompt for prompt, _ in GOLDEN.values()]
    golden = [[int(token) for token in row.split()] for _, row in GOLDEN.values()]
    sampling = SamplingParameters(max_tokens=24, temperature=0.0, ignore_eos=True)

    assert [llm.generate([prompt], sampling)[0].token_ids for prompt in prompts] == golden
    assert [generation.token_ids for generation in llm.generate(prompts, sampling)] == golden
    source = cached_conversion(resolve_model(config.model, lambda _: None))
    assert source is not None, "the engine keeps a converted copy of a GGUF file"
    assert [reference_tokens(source.folder, prompt, 24) for prompt in prompts] == golden


def test_stories260k_for_200_tokens() -> None:
    from transformers import AutoTokenizer

    folder = stories260k()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer("Once upon a time").input_ids
    assert prompt == [1, 403, 407, 261, 378]
    llm = LLM(EngineConfig(model=str(folder), kv_cache_memory_bytes=2**24, threads=1))
    (generation,) = llm.generate([prompt], SamplingParameters(max_tokens=200, temperature=0.0))
    assert generation.token_ids == reference_tokens(folder, prompt, 200)
    assert tokenizer.decode(generation.token_ids).startswith(STORY_START)


def test_bfloat16_stays_close_to_transformers(tmp_path: Path) -> None:
    """Rounding differs between kernels, so logits are compared: with those of transformers in bfloat16."""
    make_tiny_llama(tmp_path, heads=6, kv_heads=2, hidden=48, dtype="bfloat16", weight_scale=0.1)
    prompt = list(range(5, 55))
    model = load_engine_model(tmp_path, torch.bfloat16)
    (ours,) = teacher_forced_logits(model, [prompt], chunk=50, dtype=torch.bfloat16)
    theirs = reference_logits(tmp_path, prompt, torch.bfloat16)
    assert torch.allclose(ours, theirs, atol=0.02 * theirs.abs().max().item())
