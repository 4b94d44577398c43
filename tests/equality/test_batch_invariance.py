"""On the C back ends a sequence's logits are the same bits alone, in a batch, in chunks and with any budget."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pagefleet.engine import runner
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.llm import LLM
from pagefleet.engine.sampler import sample
from pagefleet.engine.sampling_params import SamplingParameters
from tests.equality.test_tiny_models import make_prompts
from tests.support.tiny_families import WINDOW, family_config
from tests.support.tiny_models import make_tiny_llama, save_random_model

PROMPTS = [*make_prompts()[:15], [token % 512 for token in range(7, 420)]]
"""The last is longer than one chunk of the attention kernel."""

SAMPLING = SamplingParameters(max_tokens=20, temperature=0.0, ignore_eos=True)

Logits = dict[tuple[str, int], torch.Tensor]
"""By request and output position."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model"), heads=6, kv_heads=2, head_dim=32, hidden=48)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Logits:
    """Return a dictionary that every step's logits go into."""
    logits: Logits = {}

    def record(rows: torch.Tensor, sequences: Any, *arguments: Any) -> Any:
        for row, sequence in zip(rows, sequences, strict=True):
            logits[sequence.request_id, sequence.output_tokens] = row.clone()
        return sample(rows, sequences, *arguments)

    monkeypatch.setattr(runner, "sample", record)
    return logits


def make_engine(folder: Path, **options: Any) -> LLM:
    defaults = {"max_num_seqs": 16, "kv_cache_memory_bytes": 2**25, "threads": 1}
    return LLM(EngineConfig(model=str(folder), attention_backend="c", linear_backend="c", **{**defaults, **options}))


def logits_of(engine: LLM, seen: Logits, prompts: list[list[int]]) -> Logits:
    seen.clear()
    engine.generate(prompts, SAMPLING)
    return dict(seen)


def run(folder: Path, seen: Logits, prompts: list[list[int]], **options: Any) -> Logits:
    return logits_of(make_engine(folder, **options), seen, prompts)


def differing(some: Logits, others: Logits) -> list[tuple[str, int]]:
    assert some.keys() == others.keys()
    return [key for key in some if not torch.equal(some[key], others[key])]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_bits(folder: Path, seen: Logits, dtype: str) -> None:
    whole = run(folder, seen, PROMPTS, dtype=dtype, max_num_batched_tokens=4096, long_prefill_token_threshold=0)
    assert len(whole) == len(PROMPTS) * SAMPLING.max_tokens
    for options in (
        {"long_prefill_token_threshold": 37},
        {"max_num_batched_tokens": 50},
        {"block_size": 48, "max_num_seqs": 5},
    ):
        other = run(folder, seen, PROMPTS, dtype=dtype, **options)
        assert differing(other, whole) == [], options
    for index in (0, 3, len(PROMPTS) - 1):
        alone = run(folder, seen, PROMPTS[index : index + 1], dtype=dtype)
        assert all(torch.equal(row, whole[str(index), position]) for (_, position), row in alone.items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3"])
def test_the_same_bits_with_windows_and_caps(family: str, dtype: str, tmp_path: Path, seen: Logits) -> None:
    """Local and global layers: alone, among 32, in chunks, on cached blocks and after preemption."""
    config = family_config(family)
    config.max_position_embeddings = 512
    folder = save_random_model(config, tmp_path, weight_scale=0.3)
    lengths = [1, WINDOW - 1, WINDOW, WINDOW + 1, 40, 100, 250, 256 + WINDOW]
    prompts = [[token % 384 for token in range(first, first + length)] for first in range(4) for length in lengths]
    options: dict[str, Any] = {"dtype": dtype, "max_num_seqs": 32, "max_model_len": 320}
    engine = make_engine(folder, max_num_batched_tokens=8192, long_prefill_token_threshold=0, **options)
    whole = logits_of(engine, seen, prompts)
    assert len(whole) == len(prompts) * SAMPLING.max_tokens
    assert differing(logits_of(engine, seen, prompts), whole) == []
    assert engine.core.state().prefix_hit_tokens_total > 2000
    for index in (2, 5, 7):
        alone = logits_of(engine, seen, prompts[index : index + 1])
        assert all(torch.equal(row, whole[str(index), position]) for (_, position), row in alone.items())
    assert differing(run(folder, seen, prompts, long_prefill_token_threshold=37, **options), whole) == []
    bytes_per_block = engine.core.info.kv_cache_bytes // engine.core.info.blocks_total
    tight = make_engine(folder, kv_cache_memory_bytes=22 * bytes_per_block, enable_prefix_caching=False, **options)
    assert differing(logits_of(tight, seen, prompts), whole) == []
    assert tight.core.state().preemptions_total > 0
