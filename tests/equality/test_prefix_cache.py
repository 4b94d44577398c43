"""A prefix hit gives the same tokens as a miss: at every offset to a block boundary, in chunks, under eviction."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.llm import LLM
from pagefleet.engine.messages import AddRequest
from pagefleet.engine.sampling_params import SamplingParameters
from tests.equality.oracle import reference_tokens
from tests.support.tiny_models import make_tiny_llama

GREEDY = SamplingParameters(max_tokens=12, temperature=0.0, ignore_eos=True)
BLOCK = 8
generator = random.Random(3)
SHARED = [generator.randrange(512) for _ in range(5 * BLOCK)]
# Every length around block boundaries, with and without tokens of its own behind the shared ones.
PROMPTS = [
    SHARED[:length] + own
    for length in (BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 3 * BLOCK, 3 * BLOCK + 1, 5 * BLOCK)
    for own in ([], [7], [8, 9, 10])
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("gqa"), heads=6, kv_heads=2, hidden=48)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    return [reference_tokens(folder, prompt, GREEDY.max_tokens) for prompt in PROMPTS]


def engine(folder: Path, **options: Any) -> LLM:
    defaults: dict[str, Any] = {"block_size": BLOCK, "kv_cache_memory_bytes": 2**22, "max_num_seqs": 32, "threads": 1}
    return LLM(EngineConfig(model=str(folder), **{**defaults, **options}))


def tokens(llm: LLM, prompts: list[list[int]] = PROMPTS) -> list[list[int]]:
    generated = [generation.token_ids for generation in llm.generate(prompts, GREEDY)]
    llm.core.scheduler.check_integrity()
    assert llm.core.state().blocks_active == 0
    return generated


@pytest.mark.parametrize("chunk", [0, 5])
def test_a_hit_equals_a_miss(folder: Path, expected: list[list[int]], chunk: int) -> None:
    llm = engine(folder, long_prefill_token_threshold=chunk)
    assert [tokens(llm, [prompt])[0] for prompt in PROMPTS] == expected, "one after another, each hits the ones before"
    hits = llm.core.state().prefix_hit_tokens_total
    assert tokens(llm) == expected, "and all together"
    assert llm.core.state().prefix_hit_tokens_total - hits > 0.7 * sum(map(len, PROMPTS))


def test_equal_prompts_in_one_batch(folder: Path, expected: list[list[int]]) -> None:
    llm = engine(folder)
    assert tokens(llm, PROMPTS[-3:] * 6) == expected[-3:] * 6
    assert llm.core.state().prefix_hit_tokens_total > 0.7 * 18 * len(SHARED)


def test_without_the_cache(folder: Path, expected: list[list[int]]) -> None:
    llm = engine(folder, enable_prefix_caching=False)
    assert tokens(llm) == expected
    state = llm.core.state()
    assert (state.prefix_query_tokens_total, state.blocks_cached) == (0, 0)


def test_under_eviction_and_preemption(folder: Path, expected: list[list[int]]) -> None:
    """A cache of little more than one sequence: blocks change hands all the time, and hits come and go."""
    roomy = engine(folder)
    bytes_per_block = roomy.core.info.kv_cache_bytes // roomy.core.info.blocks_total
    llm = engine(folder, max_model_len=64, kv_cache_memory_bytes=10 * bytes_per_block)
    order = list(range(len(PROMPTS))) * 2
    random.Random(5).shuffle(order)
    generations = llm.generate([PROMPTS[index] for index in order], GREEDY)
    assert [generation.token_ids for generation in generations] == [expected[index] for index in order]
    assert sum(generation.preemptions for generation in generations) > 0
    assert llm.core.state().prefix_hit_tokens_total > 0


def test_a_conversation(folder: Path) -> None:
    """Each turn's prompt is the last turn's prompt and answer and a few new tokens."""
    llm = engine(folder)
    prompt = SHARED[:13]
    for turn in range(4):
        (answer,) = tokens(llm, [prompt])
        assert answer == reference_tokens(folder, prompt, GREEDY.max_tokens)
        prompt = [*prompt, *answer, turn, turn + 1, turn + 2]
    assert llm.core.state().prefix_hit_tokens_total >= 16 + 24 + 40


def test_values_that_are_not_finite_stay_with_their_request(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poisoned prompt fails; whoever sends its beginning later, or gets its blocks, is not hurt."""
    llm = engine(folder, max_num_batched_tokens=32, long_prefill_token_threshold=BLOCK)
    poisoned = 500
    embedding = torch.nn.functional.embedding

    def poison(token_ids: torch.Tensor, *arguments: Any) -> torch.Tensor:
        rows = embedding(token_ids, *arguments)
        rows[token_ids == poisoned] = torch.nan
        return rows

    monkeypatch.setattr(torch.nn.functional, "embedding", poison)
    bad = [*SHARED[: 3 * BLOCK], poisoned, *SHARED[3 * BLOCK :]]
    llm.core.add(AddRequest(request_id="bad", prompt_token_ids=bad, sampling=GREEDY))
    ends = []
    while llm.core.has_work():
        ends += [output.finish_reason for output in llm.core.step().outputs]
        llm.core.scheduler.check_integrity()
    assert ends == ["error"]
    assert llm.core.state().blocks_cached == 0
    good = [*SHARED[: 3 * BLOCK], 7]
    wanted = reference_tokens(folder, good, GREEDY.max_tokens)
    assert all(answer == wanted for answer in tokens(llm, [good] * 4))


def test_resetting_forgets(folder: Path, expected: list[list[int]]) -> None:
    llm = engine(folder)
    tokens(llm, PROMPTS[-1:])
    llm.core.reset_prefix_cache()
    assert tokens(llm, PROMPTS[-1:]) == expected[-1:]
    assert llm.core.state().prefix_hit_tokens_total == 0
