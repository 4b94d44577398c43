"""Choice `i` of a request equals a request of its own with the seed plus `i`, shared blocks and preemption or not."""

from pathlib import Path
from typing import Any

import pytest

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.llm import LLM
from pagefleet.engine.messages import AddRequest
from pagefleet.engine.sampling_params import SamplingParameters
from tests.support.tiny_models import make_tiny_llama

N = 5
PROMPTS = [[7], list(range(20, 35)), list(range(40, 56)), list(range(60, 97))]


def sampling(**fields: Any) -> SamplingParameters:
    return SamplingParameters(
        max_tokens=20, temperature=2.0, ignore_eos=True, frequency_penalty=0.5, **{"seed": 11, **fields}
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("gqa"), heads=6, kv_heads=2, hidden=48)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    """Return the tokens of single requests, one at a time."""
    llm = engine(folder, enable_prefix_caching=False)
    return [llm.generate([prompt], sampling(seed=11 + index))[0].token_ids for prompt in PROMPTS for index in range(N)]


def engine(folder: Path, **options: Any) -> LLM:
    defaults: dict[str, Any] = {"kv_cache_memory_bytes": 2**22, "max_num_seqs": 32, "threads": 1}
    return LLM(EngineConfig(model=str(folder), **{**defaults, **options}))


@pytest.mark.parametrize("enable_prefix_caching", [False, True])
@pytest.mark.parametrize("block_size", [8, 16])
def test_choices_equal_single_requests(
    folder: Path, expected: list[list[int]], block_size: int, enable_prefix_caching: bool
) -> None:
    llm = engine(folder, block_size=block_size, enable_prefix_caching=enable_prefix_caching)
    generations = llm.generate(PROMPTS, sampling(n=N))
    assert [generation.token_ids for generation in generations] == expected
    assert len({tuple(tokens) for tokens in expected}) == len(expected), "every choice is another text"
    assert llm.core.state().blocks_active == 0


def test_choices_under_preemption(folder: Path, expected: list[list[int]]) -> None:
    roomy = engine(folder, block_size=8)
    bytes_per_block = roomy.core.info.kv_cache_bytes // roomy.core.info.blocks_total
    llm = engine(folder, block_size=8, max_model_len=64, kv_cache_memory_bytes=16 * bytes_per_block)
    generations = llm.generate(PROMPTS, sampling(n=N))
    assert [generation.token_ids for generation in generations] == expected
    assert sum(generation.preemptions for generation in generations) > 0
    llm.core.scheduler.check_integrity()


@pytest.mark.parametrize("prompt", [[7] * 5, list(range(200))])
def test_eight_choices_need_the_blocks_of_one_at_the_first_token(folder: Path, prompt: list[int]) -> None:
    blocks = []
    for n in (1, 8):
        llm = engine(folder, enable_prefix_caching=False)
        llm.core.add(AddRequest(request_id="a", prompt_token_ids=prompt, sampling=sampling(n=n)))
        outputs = llm.core.step().outputs
        assert [output.index for output in outputs] == list(range(n))
        blocks.append(llm.core.state().blocks_active)
    assert blocks[1] <= 1.2 * blocks[0]
