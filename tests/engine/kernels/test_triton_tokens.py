"""A tiny Llama's greedy tokens over the Triton kernels are transformers', in chunks and in a mixed batch."""

from pathlib import Path

import torch

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.llm import LLM
from pagefleet.engine.sampling_params import SamplingParameters
from tests.equality.oracle import reference_tokens
from tests.support.tiny_models import make_tiny_llama


def test_tokens(tmp_path: Path) -> None:
    """The second prompt comes in chunks of 9 tokens beside the first one's decodes, over blocks of 8."""
    folder = make_tiny_llama(tmp_path, heads=4, kv_heads=2)
    prompts = [[5, 6, 7], [(7 * i) % 300 for i in range(25)]]
    llm = LLM(
        EngineConfig(
            model=str(folder),
            dtype="float32",
            device="cuda" if torch.cuda.is_available() else "cpu",
            attention_backend="triton",
            block_size=8,
            long_prefill_token_threshold=9,
            max_num_seqs=2,
            max_num_batched_tokens=16,
            max_model_len=48,
            kv_cache_memory_bytes=2**20,
            threads=1,
        )
    )
    generations = llm.generate(prompts, SamplingParameters(max_tokens=6, temperature=0.0, ignore_eos=True))
    assert [one.token_ids for one in generations] == [reference_tokens(folder, prompt, 6) for prompt in prompts]
