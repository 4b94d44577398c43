"""8-bit checkpoints: the engine reads them as what it rounds itself, and wrong ones say why."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagefleet.engine.checkpoint_format import packed_format
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.cpu.int8 import use_int8
from pagefleet.engine.kernels.cpu.linear import CpuInt8Linear
from pagefleet.engine.layers.quantized import TorchInt8Linear
from pagefleet.engine.llm import LLM
from pagefleet.engine.models.decoder import DecoderModel
from pagefleet.engine.quantize.formats import quantization_config
from pagefleet.engine.quantize.run import QuantizeOptions, run_quantize
from pagefleet.engine.sampling_params import SamplingParameters
from tests.engine.test_quantize import quantize
from tests.support.forward import load_engine_model, teacher_forced_logits
from tests.support.tiny_families import family_config
from tests.support.tiny_models import make_byte_level_tokenizer, make_tiny_llama, save_random_model

TOKENS = list(range(3, 90))
LAYER = "model.layers.0.self_attn.q_proj"
W8A8 = quantization_config("compressed-tensors", None, 0.01)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_byte_level_tokenizer(make_tiny_llama(tmp_path_factory.mktemp("model"), hidden=64, head_dim=16))


@pytest.fixture(scope="module")
def quantized(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantize(model, tmp_path_factory.mktemp("quantized") / "out", "int8", None)


def logits_of(folder: Path, *, rounds: bool) -> torch.Tensor:
    model = load_engine_model(folder)
    assert isinstance(model, DecoderModel)
    if rounds:
        use_int8("torch", [linear for part, linear in model.linears() if part != "lm_head"])
    return teacher_forced_logits(model, [TOKENS], chunk=32)[0]


@pytest.mark.parametrize("family", ["llama", "gemma3", "phi3", "qwen2"])
def test_logits_are_those_of_rounding_while_loading(family: str, tmp_path: Path) -> None:
    """Fused linears, biases, tied heads."""
    config = family_config(family)
    folder = save_random_model(config, tmp_path / "model", weight_scale=0.1)
    make_byte_level_tokenizer(folder, vocab=config.vocab_size)
    run_quantize(QuantizeOptions(model=str(folder), method="int8", output=tmp_path / "out", threads=1), lambda _: None)
    assert torch.equal(logits_of(tmp_path / "out", rounds=False), logits_of(folder, rounds=True))
    assert not torch.equal(logits_of(folder, rounds=False), logits_of(folder, rounds=True))


def test_kernels_take_the_integers_over(quantized: Path) -> None:
    model = load_engine_model(quantized)
    linears = [linear for _, linear in model.linears() if isinstance(linear.kernel, TorchInt8Linear)]
    assert len(linears) == 8
    before = teacher_forced_logits(model, [TOKENS], chunk=32)[0]
    assert use_int8("c", linears) == "c"
    assert all(isinstance(linear.kernel, CpuInt8Linear) for linear in linears)
    assert torch.allclose(teacher_forced_logits(model, [TOKENS], chunk=32)[0], before, atol=1e-4)


def test_tokens_are_those_of_rounding_while_loading(model: Path, quantized: Path) -> None:
    greedy = SamplingParameters(max_tokens=8, temperature=0.0, ignore_eos=True)
    settings = {"kv_cache_memory_bytes": 2**22, "threads": 1, "linear_backend": "c"}
    llm = LLM(EngineConfig(model=str(quantized), **settings))  # type: ignore[arg-type]
    assert llm.core.info.quantization == "compressed-tensors"
    rounding = EngineConfig(model=str(model), quantization="int8", quantization_ignore=("lm_head",), **settings)  # type: ignore[arg-type]
    assert llm.generate([TOKENS], greedy)[0].token_ids == LLM(rounding).generate([TOKENS], greedy)[0].token_ids


def test_layers_of_one_input_of_which_one_is_plain(
    quantized: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = load_file(quantized / "model.safetensors")
    scales = tensors.pop(f"{LAYER}.weight_scale")
    tensors[f"{LAYER}.weight"] = tensors[f"{LAYER}.weight"] * scales
    mixed = damaged(quantized, tmp_path, tensors)
    near, expected = logits_of(mixed, rounds=False), logits_of(quantized, rounds=False)
    assert "packed differently and become torch.float32: 2 of 3 are packed" in caplog.text
    assert (near - expected).abs().mean() < 0.1 * expected.std()


def damaged(quantized: Path, folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    for path in quantized.iterdir():
        if path.suffix == ".json":
            (folder / path.name).write_bytes(path.read_bytes())
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("part", "change", "sentence"),
    [
        (
            "weight",
            lambda weight: weight.float(),
            "weight holds torch.float32 (64, 64), and config.json says torch.int8",
        ),
        ("weight", lambda weight: weight[:8].clone(), "torch.int8 (8, 64), and config.json says torch.int8 (64, 64)"),
        ("weight_scale", lambda scale: scale[:8].clone(), "torch.float32 (8, 1), not a float for each of 64 outputs"),
        ("weight_scale", lambda scale: scale.int(), "torch.int32 (64, 1), not a float for each of 64 outputs"),
    ],
)
def test_damaged_layers(quantized: Path, tmp_path: Path, part: str, change: Any, sentence: str) -> None:
    tensors = load_file(quantized / "model.safetensors")
    tensors[f"{LAYER}.{part}"] = change(tensors[f"{LAYER}.{part}"])
    with pytest.raises(StartupError) as raised:
        load_engine_model(damaged(quantized, tmp_path, tensors))
    assert f"weight {LAYER}." in str(raised.value)
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("part", "change", "sentence"),
    [
        ("weights", {"num_bits": 4}, "weights of this compressed-tensors checkpoint have num_bits 4, and"),
        ("weights", {"strategy": "tensor"}, "have strategy tensor, and with int-quantized channel is read"),
        ("weights", {"symmetric": False}, "have symmetric False, and with int-quantized True is read"),
        (
            "input_activations",
            {"dynamic": False},
            "input_activations of this compressed-tensors checkpoint have dynamic",
        ),
        ("input_activations", {"strategy": "tensor"}, "use one made with scheme W8A8 and dynamic activations"),
    ],
)
def test_schemes_that_are_not_read(part: str, change: dict[str, Any], sentence: str) -> None:
    config = deepcopy(W8A8)
    config["config_groups"]["group_0"][part] |= change
    with pytest.raises(StartupError) as raised:
        packed_format(config)
    assert sentence in str(raised.value)
