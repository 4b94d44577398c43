"""Beams equal transformers', token for token and in order: on random models, whatever is shared or preempted."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.llm import LLM, Generation
from pagefleet.engine.messages import AddRequest
from pagefleet.engine.sampling_params import SamplingParameters
from tests.equality.oracle import reference_beams, reference_model, smollm2_folder
from tests.support.models import smollm2
from tests.support.tiny_models import make_tiny_llama

END = 1
PROMPTS = [[7], list(range(20, 35)), list(range(40, 56))]
TOKENS = 14
CASES = list(product((1, 3, 4), (-0.5, 0.0, 1.0, 2.0), (True, False, "never")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model whose end token comes up often: its row of the head points where every output points."""
    folder = make_tiny_llama(tmp_path_factory.mktemp("ends"), heads=6, kv_heads=2, hidden=48, weight_scale=0.3)
    model = reference_model(str(folder))
    with torch.inference_mode():
        hidden = model.model(torch.tensor([list(range(5, 500))])).last_hidden_state[0]
        model.lm_head.weight[END] += 1.3 * torch.nn.functional.normalize(hidden.mean(0), dim=0)
    model.save_pretrained(folder)
    return folder


def sampling(width: int, **fields: Any) -> SamplingParameters:
    return SamplingParameters(**{"max_tokens": TOKENS, "use_beam_search": True, "beam_width": width, **fields})


def engine(folder: Path, **options: Any) -> LLM:
    defaults: dict[str, Any] = {"kv_cache_memory_bytes": 2**22, "max_num_seqs": 32, "threads": 1}
    return LLM(EngineConfig(model=str(folder), **{**defaults, **options}))


def tokens(llm: LLM, generations: list[Generation]) -> list[list[int]]:
    llm.core.scheduler.check_integrity()
    assert llm.core.state().blocks_active == 0
    return [generation.token_ids for generation in generations]


def test_beams_equal_those_of_transformers(folder: Path) -> None:
    llm = engine(folder)
    lengths = set()
    for width, length_penalty, early_stopping in CASES:
        asked = sampling(width, length_penalty=length_penalty, early_stopping=early_stopping)
        expected = [
            beam
            for prompt in PROMPTS
            for beam in reference_beams(
                folder,
                prompt,
                width,
                tokens=TOKENS,
                end=END,
                length_penalty=length_penalty,
                early_stopping=early_stopping,
            )
        ]
        assert tokens(llm, llm.generate(PROMPTS, asked)) == expected, asked
        lengths |= set(map(len, expected))
    assert min(lengths) < TOKENS == max(lengths), "some end early and some by their length"


@pytest.mark.parametrize(
    "options", [{"block_size": 8}, {"enable_prefix_caching": False}, {"batching": "static"}], ids=str
)
def test_however_blocks_are_shared(folder: Path, options: dict[str, Any]) -> None:
    llm = engine(folder, **options)
    expected = [beam for prompt in PROMPTS for beam in reference_beams(folder, prompt, 4, tokens=TOKENS, end=END)]
    assert tokens(llm, llm.generate(PROMPTS, sampling(4))) == expected
    assert tokens(llm, llm.generate(PROMPTS, sampling(4))) == expected, "and with what is cached"


@pytest.mark.parametrize(("blocks", "most"), [(7, 32), (10, 32), (10, 5), (16, 9), (64, 5)])
def test_under_preemption(folder: Path, blocks: int, most: int) -> None:
    """A cache that holds one beam or a few, and places for little more than one search."""
    roomy = engine(folder, block_size=8)
    bytes_per_block = roomy.core.info.kv_cache_bytes // roomy.core.info.blocks_total
    llm = engine(
        folder, block_size=8, max_model_len=48, max_num_seqs=most, kv_cache_memory_bytes=blocks * bytes_per_block
    )
    expected = [beam for prompt in PROMPTS for beam in reference_beams(folder, prompt, 4, tokens=30, end=None)]
    assert tokens(llm, llm.generate(PROMPTS, sampling(4, max_tokens=30, ignore_eos=True))) == expected
    assert (llm.core.scheduler.preemptions_total > 0) == (blocks < 64)


@pytest.mark.parametrize("blocks", [10, 64])
def test_scores_are_those_of_the_tokens(folder: Path, blocks: int) -> None:
    """Each beam's scores equal those of the same tokens as a prompt, preempted or not."""
    roomy = engine(folder, block_size=8)
    bytes_per_block = roomy.core.info.kv_cache_bytes // roomy.core.info.blocks_total
    llm = engine(folder, block_size=8, max_model_len=48, kv_cache_memory_bytes=blocks * bytes_per_block)
    beams = llm.generate(PROMPTS, sampling(4, logprobs=2))
    plain = SamplingParameters(max_tokens=1, prompt_logprobs=2)
    texts = [[*PROMPTS[index // 4], *beam.token_ids] for index, beam in enumerate(beams)]
    for beam, scored in zip(beams, roomy.generate(texts, plain), strict=True):
        assert beam.logprobs is not None
        assert scored.prompt_logprobs is not None
        expected = scored.prompt_logprobs[-len(beam.token_ids) :]
        assert [each.token_id for each in beam.logprobs] == beam.token_ids
        assert [each.rank for each in beam.logprobs] == [each.rank for each in expected]
        assert [each.logprob for each in beam.logprobs] == pytest.approx([each.logprob for each in expected], abs=1e-4)
        assert [[token for token, _ in each.top] for each in beam.logprobs] == [
            [token for token, _ in each.top] for each in expected
        ]
    assert (llm.core.scheduler.preemptions_total > 0) == (blocks == 10)


def test_beside_other_requests(folder: Path) -> None:
    llm = engine(folder)
    greedy = SamplingParameters(max_tokens=TOKENS, temperature=0.0)
    alone = llm.generate(PROMPTS[:1], greedy)
    both = llm.generate([PROMPTS[0], PROMPTS[1]], [greedy, sampling(4)])
    assert tokens(llm, both) == [alone[0].token_ids, *reference_beams(folder, PROMPTS[1], 4, tokens=TOKENS, end=END)]


def test_beams_share_the_blocks_of_what_they_have_in_common(folder: Path) -> None:
    prompt = list(range(10, 210))
    llm = engine(folder, enable_prefix_caching=False)
    llm.core.add(AddRequest(request_id="a", prompt_token_ids=prompt, sampling=sampling(4)))
    most = 0
    while llm.core.has_work():
        llm.core.step()
        llm.core.scheduler.check_integrity()
        most = max(most, llm.core.state().blocks_active)
    assert most <= 200 // 16 + 2 * 4


@pytest.mark.real_model
def test_a_trained_model() -> None:
    config = EngineConfig(model=smollm2(), dtype="float32", kv_cache_memory_bytes=2**27, max_model_len=64, threads=1)
    llm = LLM(config)
    prompt = [504, 3575, 282, 4649, 314]
    beams = tokens(llm, llm.generate([prompt], sampling(3, ignore_eos=True)))
    assert beams == reference_beams(smollm2_folder(), prompt, 3, tokens=TOKENS, end=None)
