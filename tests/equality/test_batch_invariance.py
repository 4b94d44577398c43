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
from tests.support.tiny_models import make_tiny_llama

PROMPTS = [*make_prompts()[:15], [token % 512 for token in range(7, 420)]]
"""The last is longer than one chunk of the attention kernel."""

SAMPLING = SamplingParameters(max_tokens=6, temperature=0.0, ignore_eos=True)

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


def run(folder: Path, seen: Logits, prompts: list[list[int]], **options: Any) -> Logits:
    config = EngineConfig(
        model=str(folder),
        attention_backend="c",
        linear_backend="c",
        kv_cache_memory_bytes=2**25,
        threads=1,
        **{"max_num_seqs": 16, **options},
    )
    seen.clear()
    LLM(config).generate(prompts, SAMPLING)
    return {key: row for key, row in seen.items() if key[0] != "warm-up"}


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
        assert other.keys() == whole.keys()
        assert [key for key in whole if not torch.equal(other[key], whole[key])] == [], options
    for index in (0, 3, len(PROMPTS) - 1):
        alone = run(folder, seen, PROMPTS[index : index + 1], dtype=dtype)
        assert all(torch.equal(row, whole[str(index), position]) for (_, position), row in alone.items())
