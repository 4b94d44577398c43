"""A packed KV cache against itself: whatever the steps, a query sees the same rounded keys and values."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from pagefleet.engine.llm import LLM
from pagefleet.engine.sampling_params import SamplingParameters
from tests.equality.test_lattice import Mode, run
from tests.support.models import smollm2
from tests.support.tiny_families import SIZES, family_config
from tests.support.tiny_models import save_random_model

NEW_TOKENS = 40
GREEDY = SamplingParameters(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
FAMILIES = ("llama", "gemma2", "qwen2")
"""Plain; windows and soft caps; biased keys."""
PACKED = {"int8": 16, "int4": 32, "k4v3": 64}
"""The smallest legal blocks, of which a prompt has the most."""


def has_hits(llm: LLM, preemptions: int) -> bool:
    return preemptions == 0 and llm.core.state().prefix_hit_tokens_total > 0


def modes_of(name: str) -> dict[str, Mode]:
    """Return the ways through an engine with this cache."""
    packed = {"kv_cache_dtype": name, "block_size": PACKED[name]}
    return {
        "chunks": Mode(sampling=GREEDY, options=packed | {"long_prefill_token_threshold": 7}),
        "small-budget": Mode(sampling=GREEDY, options=packed | {"max_num_batched_tokens": 33, "max_num_seqs": 5}),
        "alone": Mode(sampling=GREEDY, options=packed | {"max_num_seqs": 1}),
        "prefix-hit": Mode(
            sampling=GREEDY,
            options=packed,
            repeats=2,
            shows=lambda llm, _: llm.core.state().prefix_hit_tokens_total > 0,
        ),
        "no-prefix-cache": Mode(sampling=GREEDY, options=packed | {"enable_prefix_caching": False}),
        "preempted": Mode(
            sampling=GREEDY, options=packed, blocks=600 // PACKED[name], shows=lambda _, preemptions: preemptions > 0
        ),
        "choices": Mode(
            sampling=SamplingParameters(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True, n=2), options=packed
        ),
        "torch": Mode(sampling=GREEDY, options=packed | {"attention_backend": "gather"}),
    }


MODES = tuple(modes_of("int8"))


def make_prompts(vocabulary_size: int) -> list[list[int]]:
    """Return prompts that are longer than the sinks and a few blocks, two of which begin alike."""
    base = [(7 * place * place + 11 * place) % vocabulary_size for place in range(290)]
    return [base[:230], base[40:260], base[:150], base[90:99], base[:140] + base[200:250]]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the function that makes a checkpoint on first use."""

    @cache
    def make(name: str) -> Path:
        config = family_config(name)
        config.max_position_embeddings = 512
        return save_random_model(config, tmp_path_factory.mktemp(name), weight_scale=0.3)

    return make


def whole(folder: str, name: str, prompts: list[list[int]]) -> list[list[int]]:
    """Return what each prompt gives in one chunk, alone in an engine without a prefix cache."""
    options = {"kv_cache_dtype": name, "block_size": PACKED[name], "enable_prefix_caching": False, "max_num_seqs": 1}
    return run(folder, prompts, Mode(sampling=GREEDY, options=options))


@cache
def whole_of_family(folder: str, name: str) -> list[list[int]]:
    return whole(folder, name, make_prompts(SIZES["vocab_size"]))


def make_few_prompts() -> list[list[int]]:
    """Return those of a trained model, whose steps take long: a long one, a short one, and one that begins alike."""
    prompts = make_prompts(49_152)
    return [prompts[0], prompts[3], prompts[4]]


@cache
def whole_of_smollm2() -> list[list[int]]:
    return whole(smollm2(), "int8", make_few_prompts())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("family", "name"), [("llama", "int8"), ("gemma2", "int8"), ("qwen2", "int4"), ("llama", "k4v3")]
)
def test_families(folder_of: Callable[[str], Path], family: str, name: str, mode: str) -> None:
    folder = str(folder_of(family))
    way = modes_of(name)[mode]
    tokens = run(folder, make_prompts(SIZES["vocab_size"]), way)
    assert tokens == [each for each in whole_of_family(folder, name) for _ in range(way.sampling.choices)]


@pytest.mark.real_model
@pytest.mark.parametrize("mode", ["chunks", "prefix-hit", "preempted"])
def test_a_trained_model(mode: str) -> None:
    prompts, way = make_few_prompts(), modes_of("int8")[mode]
    if way.blocks is not None:
        way = replace(way, blocks=400 // PACKED["int8"])
    assert run(smollm2(), prompts, way) == whole_of_smollm2()


@pytest.mark.real_model
def test_rounding_changes_nothing_within_sinks_and_the_first_block() -> None:
    """Up to 64 tokens all is plain, so that the tokens are those of a plain cache."""
    prompts = [prompt[:30] for prompt in make_prompts(49_152)]
    plain, packed = (
        run(smollm2(), prompts, Mode(sampling=GREEDY, options={"kv_cache_dtype": name, "block_size": 64}))
        for name in ("auto", "k4v3")
    )
    assert packed == plain
