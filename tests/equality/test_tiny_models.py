"""Greedy tokens equal transformers', however the work is cut, batched, paged or preempted."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.kernels.interface import PagedAttention
from pagefleet.engine.kernels.reference import ReferenceAttention
from pagefleet.engine.llm import LLM, Generation
from pagefleet.engine.sampling_params import SamplingParameters
from tests.equality.oracle import reference_tokens
from tests.support.tiny_models import make_tiny_llama

NEW_TOKENS = 20
VOCABULARY = 512
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "mha": {"heads": 4, "kv_heads": 4, "head_dim": 16},
    "gqa": {"heads": 6, "kv_heads": 2, "head_dim": 32, "hidden": 48, "tie": True},
    "mqa": {"heads": 4, "kv_heads": 1, "head_dim": 16, "attention_bias": True},
    "llama3-rope": {"rope_parameters": LLAMA3_ROPE},
    "linear-rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    "yarn-rope": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}
GREEDY = SamplingParameters(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)


def make_prompts() -> list[list[int]]:
    """Return 32 prompts of 1 to 120 tokens, always the same."""
    generator = random.Random(7)
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 64, 120] + [generator.randint(1, 120) for _ in range(22)]
    return [[generator.randrange(VOCABULARY) for _ in range(length)] for length in lengths]


PROMPTS = make_prompts()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: make_tiny_llama(tmp_path_factory.mktemp(name), vocab=VOCABULARY, **options)
        for name, options in FAMILIES.items()
    }


@cache
def expected(folder: Path) -> list[list[int]]:
    return [reference_tokens(folder, prompt, NEW_TOKENS) for prompt in PROMPTS]


def engine(folder: Path, attention: type[PagedAttention] | None = None, **options: Any) -> LLM:
    defaults: dict[str, Any] = {
        "max_num_seqs": 32,
        "kv_cache_memory_bytes": 2**25,
        "threads": 1,
        # One side is all C, the other all torch: the probe would choose by the moment's load.
        "linear_backend": "torch" if options.get("attention_backend") == "gather" else "c",
    }
    return LLM(EngineConfig(model=str(folder), **{**defaults, **options}), attention_class=attention)


def tokens(generations: list[Generation]) -> list[list[int]]:
    return [generation.token_ids for generation in generations]


@pytest.mark.parametrize(
    ("family", "backend"),
    [*((family, "gather") for family in FAMILIES), *((family, "c") for family in ("mha", "gqa", "mqa"))],
)
def test_alone_and_in_a_batch(folders: dict[str, Path], family: str, backend: str) -> None:
    llm = engine(folders[family], attention_backend=backend)
    alone = [llm.generate([prompt], GREEDY)[0].token_ids for prompt in PROMPTS[:10]]
    assert alone == expected(folders[family])[:10]
    assert tokens(llm.generate(PROMPTS, GREEDY)) == expected(folders[family])


@pytest.mark.parametrize(("backend", "block_size"), [("gather", 1), ("gather", 16), ("c", 16), ("c", 32)])
@pytest.mark.parametrize("chunk", [1, 7, 64, 0])
@pytest.mark.parametrize("family", ["mha", "gqa", "mqa"])
def test_chunks_and_block_sizes(
    folders: dict[str, Path], family: str, chunk: int, backend: str, block_size: int
) -> None:
    """A chunk of 0 is the whole prompt: no cap, and a budget that takes all prompts in one step."""
    llm = engine(
        folders[family],
        attention_backend=backend,
        block_size=block_size,
        long_prefill_token_threshold=chunk,
        max_num_batched_tokens=4096,
    )
    assert tokens(llm.generate(PROMPTS, GREEDY)) == expected(folders[family])


@pytest.mark.parametrize("budget", [32, 50])
@pytest.mark.parametrize("family", ["mha", "gqa", "mqa"])
def test_small_budgets(folders: dict[str, Path], family: str, budget: int) -> None:
    llm = engine(folders[family], max_num_batched_tokens=budget)
    assert tokens(llm.generate(PROMPTS, GREEDY)) == expected(folders[family])


@pytest.mark.parametrize("block_size", [1, 8, 16])
@pytest.mark.parametrize("family", ["mha", "gqa", "mqa"])
def test_preemption(folders: dict[str, Path], family: str, block_size: int) -> None:
    """A cache of two of the longest sequences makes the others wait, and some be preempted and computed again."""
    roomy = engine(folders[family], block_size=block_size)
    bytes_per_token = roomy.core.info.kv_cache_bytes // (roomy.core.info.blocks_total * block_size)
    llm = engine(
        folders[family],
        block_size=block_size,
        max_model_len=144,
        kv_cache_memory_bytes=2 * 144 * bytes_per_token,
        max_num_batched_tokens=64,
    )
    generations = llm.generate(PROMPTS, GREEDY)
    assert tokens(generations) == expected(folders[family])
    assert sum(generation.preemptions for generation in generations) > 0
    assert llm.core.state().blocks_active == 0
    llm.core.scheduler.check_integrity()


@pytest.mark.parametrize("family", ["mha", "gqa", "mqa"])
def test_reference_attention(folders: dict[str, Path], family: str) -> None:
    llm = engine(folders[family], ReferenceAttention)
    few = PROMPTS[:6]
    assert tokens(llm.generate(few, GREEDY)) == expected(folders[family])[:6]
