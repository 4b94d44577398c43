"""Every native family: logits and greedy tokens equal transformers', however the work is cut and batched."""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.llm import LLM
from pagefleet.engine.sampling_params import SamplingParameters
from tests.equality.oracle import reference_logits, reference_tokens
from tests.support.forward import load_engine_model, teacher_forced_logits
from tests.support.tiny_families import FAMILIES, SIZES, family_config
from tests.support.tiny_models import save_random_model

NEW_TOKENS = 12
GREEDY = SamplingParameters(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
ATOL = 1e-4


def make_prompts() -> list[list[int]]:
    """Return 8 prompts, some shorter and some much longer than the window, always the same."""
    generator = random.Random(3)
    lengths = (1, 7, 23, 24, 25, 40, 64, 130)
    return [[generator.randrange(SIZES["vocab_size"]) for _ in range(length)] for length in lengths]


PROMPTS = make_prompts()


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the function that makes a checkpoint on first use."""

    @cache
    def make(name: str) -> Path:
        return save_random_model(family_config(name), tmp_path_factory.mktemp(name), weight_scale=0.3)

    return make


@cache
def expected(folder: Path) -> list[list[int]]:
    return [reference_tokens(folder, prompt, NEW_TOKENS) for prompt in PROMPTS]


def generate(folder: Path, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    llm = LLM(EngineConfig(model=str(folder), kv_cache_memory_bytes=2**23, threads=1, **options))
    return [generation.token_ids for generation in llm.generate(prompts, GREEDY)]


@pytest.mark.parametrize("chunk", [9, 1000])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits(folder_of: Callable[[str], Path], family: str, chunk: int) -> None:
    ours = teacher_forced_logits(load_engine_model(folder_of(family)), PROMPTS, chunk=chunk)
    for prompt, logits in zip(PROMPTS, ours, strict=True):
        theirs = reference_logits(folder_of(family), prompt)
        assert (logits - theirs).abs().max() <= ATOL
        assert theirs.std() > 0.5, "logits that say nothing are close to any"


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_alone_and_in_a_batch(folder_of: Callable[[str], Path], family: str) -> None:
    assert generate(folder_of(family), PROMPTS) == expected(folder_of(family))
    assert [generate(folder_of(family), [prompt])[0] for prompt in PROMPTS[-2:]] == expected(folder_of(family))[-2:]


@pytest.mark.parametrize(("block_size", "chunk"), [(1, 7), (8, 50), (32, 1)])
@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3", "phi3"])
def test_windows_over_chunks_and_block_sizes(
    folder_of: Callable[[str], Path], family: str, block_size: int, chunk: int
) -> None:
    tokens = generate(folder_of(family), PROMPTS, block_size=block_size, long_prefill_token_threshold=chunk)
    assert tokens == expected(folder_of(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_stays_close_to_transformers(folder_of: Callable[[str], Path], family: str) -> None:
    """Rounding differs between kernels, so what is compared is how far both are from float32."""
    prompt = PROMPTS[-1][:60]
    exact = reference_logits(folder_of(family), prompt)
    (ours,) = teacher_forced_logits(
        load_engine_model(folder_of(family), torch.bfloat16), [prompt], chunk=60, dtype=torch.bfloat16
    )
    theirs = reference_logits(folder_of(family), prompt, torch.bfloat16)
    assert (ours - exact).abs().mean() <= 1.3 * (theirs - exact).abs().mean()
