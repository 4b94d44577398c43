"""No policy changes a token: capacity and order of the queue decide when a sequence runs, never what it says."""

from pathlib import Path
from typing import Any

import pytest

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.llm import LLM
from pagefleet.engine.sampling_params import SamplingParameters
from tests.equality.oracle import reference_tokens
from tests.support.tiny_models import make_tiny_llama

PROMPTS = [list(range(7, 7 + length)) for length in (1, 5, 16, 17, 33, 40)]
GREEDY = SamplingParameters(max_tokens=12, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("mqa"), heads=4, kv_heads=1)


@pytest.mark.parametrize(
    "options",
    [
        {"capacity_policy": "ratio"},
        {"capacity_policy": "no-evict"},
        {"scheduling_policy": "priority"},
        {"batching": "static"},
        {"batching": "dynamic", "batching_timeout_s": 0.02},
    ],
    ids=str,
)
def test_policies_change_no_token(folder: Path, options: dict[str, Any]) -> None:
    roomy = LLM(EngineConfig(model=str(folder), block_size=8, kv_cache_memory_bytes=2**22, threads=1))
    bytes_per_block = roomy.core.info.kv_cache_bytes // roomy.core.info.blocks_total
    config = EngineConfig(
        model=str(folder), block_size=8, max_model_len=56, kv_cache_memory_bytes=9 * bytes_per_block, **options
    )
    generations = LLM(config).generate(PROMPTS, GREEDY)
    assert [generation.token_ids for generation in generations] == [
        reference_tokens(folder, prompt, GREEDY.max_tokens) for prompt in PROMPTS
    ]
    if options.get("capacity_policy") == "no-evict":
        assert sum(generation.preemptions for generation in generations) == 0
