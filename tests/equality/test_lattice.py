"""Every mode of the engine over every native family and a trained model: all give transformers' greedy tokens."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.llm import LLM
from pagefleet.engine.messages import CoreReady
from pagefleet.engine.sampling_params import SamplingParameters
from tests.equality.oracle import reference_beams, reference_tokens, smollm2_folder
from tests.support.models import smollm2
from tests.support.tiny_families import FAMILIES, SIZES, family_config
from tests.support.tiny_models import save_random_model

NEW_TOKENS = 8
BLOCK = 16
BEAMS = 3
GREEDY = SamplingParameters(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)


@dataclass(frozen=True, kw_only=True)
class Mode:
    """One way through the engine: its options, what is asked of it, and what shows that it was taken."""

    options: dict[str, Any] = field(default_factory=dict)
    sampling: SamplingParameters = GREEDY
    blocks: int | None = None
    """Of the cache; None is plenty."""
    repeats: int = 1
    """Times that the prompts run through the same engine; the last counts."""
    shows: Callable[[LLM, int], bool] = lambda _, preemptions: preemptions == 0


def _has_hits(llm: LLM, preemptions: int) -> bool:
    return preemptions == 0 and llm.core.state().prefix_hit_tokens_total > 0


MODES = {
    "whole": Mode(),
    "chunks": Mode(options={"long_prefill_token_threshold": 7}),
    "small-budget": Mode(options={"max_num_batched_tokens": 33, "max_num_seqs": 5}),
    "prefix-hit": Mode(repeats=2, shows=_has_hits),
    "no-prefix-cache": Mode(options={"enable_prefix_caching": False}, repeats=2),
    "preempted": Mode(blocks=9, shows=lambda _, preemptions: preemptions > 0),
    "no-evict": Mode(blocks=9, options={"capacity_policy": "no-evict"}),
    "blocks-of-32": Mode(options={"block_size": 32}),
    "static": Mode(options={"batching": "static", "max_num_seqs": 3}),
    "dynamic": Mode(options={"batching": "dynamic", "batching_timeout_s": 0.01, "max_num_seqs": 3}),
    "choices": Mode(sampling=SamplingParameters(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True, n=2)),
    "torch": Mode(options={"attention_backend": "gather", "linear_backend": "torch"}),
    "c": Mode(options={"attention_backend": "c", "linear_backend": "c"}),
    "transformers": Mode(options={"model_impl": "transformers"}),
}
REFUSED = {("phi3-longrope", "transformers")}
"""The transformers back end refuses frequencies that change with the length."""
TRAINED_MODES = ("chunks", "prefix-hit", "preempted", "blocks-of-32", "static", "choices", "torch", "transformers")
"""Of a model of 135M parameters; the others change less of what it computes."""


def make_prompts(vocabulary_size: int) -> list[list[int]]:
    """Return 6 prompts, some longer than a window and two that share their first blocks, always the same."""
    generator = random.Random(5)
    prompts = [[generator.randrange(vocabulary_size) for _ in range(length)] for length in (1, 15, 33, 64, 100)]
    return [*prompts, prompts[-1][:50] + prompts[2]]


def whole_block_bytes(info: CoreReady) -> int:
    """Return what a block takes in a small cache, where each block of a packed one can also be plain."""
    plain = info.kv_cache_bytes - info.blocks_total * info.block_bytes
    return info.block_bytes + (plain // info.plain_slots if info.plain_slots else 0)


def run(model: str, prompts: list[list[int]], mode: Mode) -> list[list[int]]:
    """Return the tokens of all choices, and check that the mode was taken and nothing is left behind."""
    config: dict[str, Any] = {"block_size": BLOCK, "kv_cache_memory_bytes": 2**26, "dtype": "float32", "threads": 1}
    config |= mode.options
    llm = LLM(EngineConfig(model=model, **config))
    if mode.blocks is not None:
        info = llm.core.info
        config |= {
            "kv_cache_memory_bytes": mode.blocks * whole_block_bytes(info),
            "max_model_len": max(map(len, prompts)) + (mode.sampling.max_tokens or NEW_TOKENS),
        }
        llm = LLM(EngineConfig(model=model, **config))
    for _ in range(mode.repeats):
        generations = llm.generate(prompts, mode.sampling)
    llm.core.scheduler.check_integrity()
    assert llm.core.state().blocks_active == 0
    assert mode.shows(llm, sum(generation.preemptions for generation in generations))
    return [generation.token_ids for generation in generations]


@cache
def expected(folder: Path) -> list[list[int]]:
    return [reference_tokens(folder, prompt, NEW_TOKENS) for prompt in make_prompts(SIZES["vocab_size"])]


@cache
def expected_of_smollm2() -> list[list[int]]:
    return [reference_tokens(smollm2_folder(), prompt, NEW_TOKENS) for prompt in make_prompts(49_152)]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the function that makes a checkpoint on first use."""

    @cache
    def make(name: str) -> Path:
        return save_random_model(family_config(name), tmp_path_factory.mktemp(name), weight_scale=0.3)

    return make


@pytest.mark.parametrize(("family", "mode"), [pair for pair in product(FAMILIES, MODES) if pair not in REFUSED])
def test_families(folder_of: Callable[[str], Path], family: str, mode: str) -> None:
    folder = folder_of(family)
    tokens = run(str(folder), make_prompts(SIZES["vocab_size"]), MODES[mode])
    assert tokens == [each for each in expected(folder) for _ in range(MODES[mode].sampling.choices)]


@pytest.mark.parametrize("family", FAMILIES)
def test_beams_of_families(folder_of: Callable[[str], Path], family: str) -> None:
    folder, prompts = folder_of(family), make_prompts(SIZES["vocab_size"])[1:4]
    search = SamplingParameters(max_tokens=NEW_TOKENS, ignore_eos=True, use_beam_search=True, beam_width=BEAMS)
    assert run(str(folder), prompts, Mode(sampling=search)) == [
        beam for prompt in prompts for beam in reference_beams(folder, prompt, BEAMS, tokens=NEW_TOKENS, end=None)
    ]


@pytest.mark.real_model
@pytest.mark.parametrize("mode", TRAINED_MODES)
def test_a_trained_model(mode: str) -> None:
    prompts = make_prompts(49_152)
    tokens = run(smollm2(), prompts, MODES[mode])
    assert tokens == [each for each in expected_of_smollm2() for _ in range(MODES[mode].sampling.choices)]
