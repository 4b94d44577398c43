"""What `pagefleet quantize` writes, read by transformers' own loader on a CPU.

Its readers of the formats gptq and awq need gptqmodel and a compiler of its kernels, so those are unpacked number by
number in test_quantize.py; compressed-tensors is plain Python.
"""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from pagefleet.engine.layers.int4 import dequantize
from pagefleet.engine.layers.int4_linear import TorchInt4Linear
from pagefleet.engine.layers.quantized import TorchInt8Linear
from tests.engine.test_quantize import TEXT, logits_of, quantize
from tests.support.forward import load_engine_model
from tests.support.tiny_models import make_byte_level_tokenizer, make_tiny_llama

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("compressed_tensors") is None, reason="compressed-tensors is not installed: make install"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_llama(tmp_path_factory.mktemp("model"), hidden=64, head_dim=16, kv_heads=4, weight_scale=0.2)
    return make_byte_level_tokenizer(folder)


def down_of(folder: Path) -> torch.Tensor:
    """Return the values that the engine reads for the first layer's last linear."""
    kernel = dict(load_engine_model(folder).linears())["down_proj"].kernel
    if isinstance(kernel, TorchInt8Linear):
        return kernel.weight.values()
    assert isinstance(kernel, TorchInt4Linear)
    return dequantize(kernel.weight)


@pytest.mark.parametrize("method", ["int8", "int4", "gptq", "awq"])
@torch.inference_mode()
def test_transformers_computes_the_same(model: Path, tmp_path: Path, method: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    folder = quantize(model, tmp_path / "out", method, text, form="compressed-tensors")
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = AutoTokenizer.from_pretrained(folder)(TEXT[5000:5600])["input_ids"][:200]
    logits, ours, plain = theirs(torch.tensor([ids])).logits[0], logits_of(folder), logits_of(model)
    error = float((ours - logits).abs().mean() / plain.std())
    assert error < (0.06 if method == "int8" else 0.002), "int8 inputs are rounded by token there, by group here"
    if method != "int8":
        assert (plain - logits).abs().mean() / plain.std() > 0.1
    values = theirs.model.layers[-1].mlp.down_proj.weight  # packed until it has computed
    assert torch.allclose(values, down_of(folder), rtol=1e-3, atol=0)  # 4-bit scales make theirs float16 on the way
