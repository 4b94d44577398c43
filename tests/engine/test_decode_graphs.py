"""Captured decode steps: which steps they serve, their padding, and what happens when nothing can be captured.

In most tests a "graph" runs what it captured again, over the same buffers: only the capture itself needs a GPU.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from pagefleet.engine import startup
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.decode_graphs import Capture, DecodeGraphs, Run, capture_decodes, graph_sizes, size_for
from pagefleet.engine.kernels.gather import GatherAttention
from pagefleet.engine.kernels.triton.attention import TritonAttention
from pagefleet.engine.llm import LLM
from pagefleet.engine.sampling_params import SamplingParameters
from tests.engine.kernels.triton_steps import make_shape
from tests.equality.oracle import reference_tokens
from tests.support.models import UNAVAILABLE
from tests.support.tiny_models import make_tiny_llama

GREEDY = SamplingParameters(max_tokens=4, temperature=0.0, ignore_eos=True)
PROMPTS = [[5, 6, 7], [9], [40, 41, 42, 43, 44, 45]]


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (16, [1, 2, 4, 8, 16]), (20, [1, 2, 4, 8, 16, 20])],
)
def test_sizes(max_num_seqs: int, sizes: list[int]) -> None:
    assert graph_sizes(max_num_seqs) == sizes


@pytest.mark.parametrize(
    ("query_lengths", "size"), [([1], 1), ([1, 1, 1], 4), ([1] * 4, 4), ([1] * 5, None), ([1, 2], None), ([7], None)]
)
def test_size_for_a_step(query_lengths: list[int], size: int | None) -> None:
    assert size_for(query_lengths, [1, 2, 4]) == size


def make_llm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capture: Capture, **options: Any) -> tuple[LLM, Path]:
    """Start an engine whose decode steps are captured with `capture`."""

    def capture_here(
        model: Any, attention: Any, *, max_num_seqs: int, max_model_len: int, max_rows: int
    ) -> DecodeGraphs:
        graphs = DecodeGraphs(
            model, attention, sizes=graph_sizes(max_num_seqs), max_model_len=max_model_len, max_rows=max_rows
        )
        graphs.capture(capture)
        return graphs

    monkeypatch.setattr(startup, "capture_decodes", capture_here)
    folder = make_tiny_llama(tmp_path, heads=2, kv_heads=1)
    config = EngineConfig(
        model=str(folder),
        attention_backend="triton",
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_model_len=64,
        kv_cache_memory_bytes=2**20,
        threads=1,
        **options,
    )
    return LLM(config), folder


def replaying(replays: list[int]) -> Capture:
    """Capture by keeping the run; each replay notes how many rows it had."""

    def capture(run: Run) -> Run:
        run()

        def replay() -> torch.Tensor:
            hidden = run()
            replays.append(len(hidden))
            return hidden

        return replay

    return capture


def test_padded_decodes_give_transformers_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replays: list[int] = []
    llm, folder = make_llm(tmp_path, monkeypatch, replaying(replays))
    replays.clear()
    generations = llm.generate(PROMPTS, GREEDY)
    assert [one.token_ids for one in generations] == [reference_tokens(folder, prompt, 4) for prompt in PROMPTS]
    assert replays == [4, 4, 4], "three sequences, padded to four rows, in three decode steps"


def test_a_refused_capture_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(run: Run) -> Run:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    llm, folder = make_llm(tmp_path, monkeypatch, refuse)
    assert "decodes run without CUDA graphs, slower in small batches: operation not permitted" in caplog.text
    assert llm.generate(PROMPTS[:1], GREEDY)[0].token_ids == reference_tokens(folder, PROMPTS[0], 4)


def test_buffers_that_have_moved_end_the_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replays: list[int] = []
    llm, _ = make_llm(tmp_path, monkeypatch, replaying(replays))
    attention = llm.core._attention
    assert isinstance(attention, TritonAttention)
    attention.reserve(sequences=100, rows=10_000, longest_context=1000)
    replays.clear()
    llm.generate(PROMPTS[:1], GREEDY)
    assert replays == []
    assert "a step was larger than all that were planned" in caplog.text


def test_other_back_ends_and_devices_capture_nothing() -> None:
    model: Any = None  # nothing looks at it
    shape = make_shape(device=torch.device("cpu"))
    for attention in (GatherAttention(shape), TritonAttention(shape)):
        assert capture_decodes(model, attention, max_num_seqs=2, max_model_len=16, max_rows=2) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason=f"a GPU {UNAVAILABLE}")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_graphs_give_the_tokens_of_single_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, dtype: str
) -> None:
    """Sequences end at different steps, so that all sizes are replayed, with contexts that grow over blocks."""
    folder = make_tiny_llama(tmp_path, heads=6, kv_heads=2, hidden=48)
    prompts = [[5 + i % 300 for i in range(length)] for length in (1, 17, 64, 100, 300)]
    lengths = [SamplingParameters(max_tokens=tokens, temperature=0.0, ignore_eos=True) for tokens in (3, 9, 20, 21, 40)]
    config = EngineConfig(model=str(folder), device="cuda", dtype=dtype, max_num_seqs=8, kv_cache_memory_bytes=2**24)
    with_graphs = LLM(config)
    assert with_graphs.core.info.attention_backend == TritonAttention.name
    assert "without CUDA graphs" not in caplog.text
    monkeypatch.setattr(startup, "capture_decodes", lambda *_, **__: None)
    tokens = [[one.token_ids for one in llm.generate(prompts, lengths)] for llm in (with_graphs, LLM(config))]
    assert tokens[0] == tokens[1]
