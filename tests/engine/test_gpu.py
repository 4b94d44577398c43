"""What needs an accelerator: the same tokens on it as on the CPU."""

from pathlib import Path

import pytest
import torch

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.llm import LLM
from pagefleet.engine.sampling_params import SamplingParameters
from tests.support.models import UNAVAILABLE
from tests.support.tiny_models import make_tiny_llama

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason=f"a GPU {UNAVAILABLE}"),
]


def test_greedy_tokens_equal_the_cpus(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path, heads=6, kv_heads=2, hidden=48)
    prompts = [[5 + i % 300 for i in range(length)] for length in (1, 17, 64, 100)]
    greedy = SamplingParameters(max_tokens=20, temperature=0.0, ignore_eos=True)
    tokens = {}
    for device in ("cpu", "cuda"):
        llm = LLM(EngineConfig(model=str(folder), device=device, dtype="float32", kv_cache_memory_bytes=2**24))
        assert llm.core.info.device == device
        tokens[device] = llm.generate(prompts, greedy)
    assert tokens["cuda"] == tokens["cpu"]


def test_seeded_draws_run_on_the_gpu(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path)
    llm = LLM(EngineConfig(model=str(folder), device="cuda", dtype="float32", kv_cache_memory_bytes=2**24))
    sampling = SamplingParameters(
        max_tokens=20, temperature=0.8, top_p=0.9, top_k=40, min_p=0.01, seed=3, frequency_penalty=0.5, min_tokens=5
    )
    assert llm.generate([[5, 6, 7]], sampling) == llm.generate([[5, 6, 7]], sampling)


def test_4_bit_weights_are_captured_and_give_the_same_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_tiny_llama(tmp_path, heads=4, kv_heads=2, hidden=64, head_dim=16, weight_scale=0.3)
    prompts = [[5], list(range(40)), list(range(100, 170))]
    greedy = SamplingParameters(max_tokens=8, temperature=0.0, ignore_eos=True)
    tokens = []
    for name in ("auto", "torch"):
        config = EngineConfig(
            model=str(folder),
            device="cuda",
            dtype="float32",
            quantization="int4",
            linear_backend=name,
            kv_cache_memory_bytes=2**24,
        )
        llm = LLM(config)
        assert llm.core.info.linear_backend == name.replace("auto", "triton")
        tokens.append(llm.generate(prompts, greedy))
    assert tokens[0] == tokens[1]
    assert "without CUDA graphs" not in caplog.text
