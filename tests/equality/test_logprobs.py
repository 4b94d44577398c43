"""Log-probabilities equal transformers' float32 log-softmax, however the work is cut, batched or preempted."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from pagefleet.engine.llm import LLM, Generation
from pagefleet.engine.logprobs import TokenLogprobs
from pagefleet.engine.sampling_params import SamplingParameters
from tests.equality.oracle import reference_model
from tests.support.tiny_models import make_tiny_llama

TOLERANCE = 1e-4
TOP = 5
NEW_TOKENS = 12
GENERATOR = random.Random(3)
PROMPTS = [[GENERATOR.randrange(512) for _ in range(length)] for length in (1, 2, 17, 64, 100)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model"), heads=6, kv_heads=2, hidden=48)


@pytest.fixture(scope="module")
def roomy(folder: Path) -> LLM:
    return engine(folder)


def engine(folder: Path, **options: Any) -> LLM:
    return LLM(str(folder), **{"max_num_seqs": 8, "kv_cache_memory_bytes": 2**24, "threads": 1, **options})


@cache
def reference(folder: Path, tokens: tuple[int, ...]) -> torch.Tensor:
    """Return [tokens, vocabulary] log-probabilities of the token after each one."""
    with torch.inference_mode():
        logits: torch.Tensor = reference_model(str(folder))(torch.tensor([tokens])).logits[0]
    return logits.float().log_softmax(-1)


def assert_scores(scores: list[TokenLogprobs] | None, tokens: list[int], rows: torch.Tensor, top: int) -> None:
    assert scores is not None
    assert [score.token_id for score in scores] == tokens
    for score, row in zip(scores, rows, strict=True):
        best = row.topk(top) if top else None
        assert score.logprob == pytest.approx(float(row[score.token_id]), abs=TOLERANCE)
        # Neighbours closer than the rounding may change places.
        assert abs(score.rank - 1 - int((row > row[score.token_id]).sum())) <= 1
        assert len(score.top) == top
        if best is not None:
            assert [value for _, value in score.top] == pytest.approx(best.values.tolist(), abs=TOLERANCE)
        assert all(value == pytest.approx(float(row[token]), abs=TOLERANCE) for token, value in score.top)


def assert_all_scores(folder: Path, generations: list[Generation], *, top: int = TOP) -> None:
    for prompt, generation in zip(PROMPTS, generations, strict=True):
        rows = reference(folder, (*prompt, *generation.token_ids))
        assert_scores(generation.prompt_logprobs, prompt[1:], rows[: len(prompt) - 1], top)
        assert_scores(generation.logprobs, generation.token_ids, rows[len(prompt) - 1 : -1], top)


def asking(**fields: Any) -> SamplingParameters:
    return SamplingParameters(
        **{"max_tokens": NEW_TOKENS, "ignore_eos": True, "logprobs": TOP, "prompt_logprobs": TOP, **fields}
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"temperature": 1.5, "seed": 4, "top_k": 20, "logit_bias": {3: 50.0}},
        {"temperature": 0.7, "seed": 5, "repetition_penalty": 1.5, "frequency_penalty": 1.0},
        {"temperature": 0.0, "allowed_token_ids": (7, 8, 9)},
    ],
)
def test_scores_are_the_models_own_whatever_the_sampling(folder: Path, roomy: LLM, fields: dict[str, Any]) -> None:
    assert_all_scores(folder, roomy.generate(PROMPTS, asking(**fields)))


@pytest.mark.parametrize("options", [{"max_num_batched_tokens": 16}, {"long_prefill_token_threshold": 1}])
def test_chunks_score_as_the_whole(folder: Path, options: dict[str, Any]) -> None:
    assert_all_scores(folder, engine(folder, **options).generate(PROMPTS, asking(temperature=0.0)))


def test_preempted_sequences_score_each_token_once(folder: Path, roomy: LLM) -> None:
    bytes_per_block = roomy.core.info.kv_cache_bytes // roomy.core.info.blocks_total
    small = engine(folder, max_model_len=128, kv_cache_memory_bytes=9 * bytes_per_block, max_num_batched_tokens=48)

    generations = small.generate(PROMPTS, asking(temperature=0.0, max_tokens=20))

    assert sum(generation.preemptions for generation in generations) > 0
    assert_all_scores(folder, generations)


def test_only_those_who_ask_get_scores(folder: Path, roomy: LLM) -> None:
    plain = SamplingParameters(max_tokens=4, temperature=0.0, ignore_eos=True)
    few = SamplingParameters(max_tokens=4, temperature=0.0, ignore_eos=True, logprobs=0)

    silent, scored = roomy.generate(PROMPTS[2:4], [plain, few])

    assert (silent.logprobs, silent.prompt_logprobs, scored.prompt_logprobs) == (None, None, None)
    rows = reference(folder, (*PROMPTS[3], *scored.token_ids))
    assert_scores(scored.logprobs, scored.token_ids, rows[len(PROMPTS[3]) - 1 : -1], 0)
