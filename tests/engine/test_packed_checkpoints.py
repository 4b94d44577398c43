"""Published 4-bit checkpoints: logits are transformers' over the weights that they stand for; wrong ones say why."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pagefleet.engine.checkpoint_format import packed_format
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.cpu.int4_linear import CpuInt4Linear
from pagefleet.engine.kernels.int4 import use_int4_backend
from pagefleet.engine.layers.int4_linear import TorchInt4Linear
from pagefleet.engine.llm import LLM
from tests.support.forward import load_engine_model, teacher_forced_logits
from tests.support.packed_checkpoints import (
    Layer,
    Numbers,
    awq_tensors,
    compressed_tensors,
    gptq_tensors,
    pack_checkpoint,
    random_layer,
)
from tests.support.tiny_models import make_tiny_llama

PROMPTS = [[5, 6, 7], list(range(40)), list(range(100, 163))]
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}},
    "ignore": ["lm_head"],
}
Make = Callable[[str, int, int], tuple[Layer, dict[str, Numbers]] | None]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("plain"), hidden=64, head_dim=16, weight_scale=0.2)


def maker(
    pack: Callable[[Layer], dict[str, Numbers]],
    *,
    group: int = 32,
    kept: tuple[str, ...] = ("lm_head",),
    own_order: tuple[str, ...] = (),
    **options: bool,
) -> Make:
    """Quantize each layer; those that read one input share a seed, and so their order, unless they have their own."""

    def make(name: str, outputs: int, inputs: int) -> tuple[Layer, dict[str, Numbers]] | None:
        if any(part in name for part in kept):
            return None
        module = name.rpartition(".")[2]
        shared = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up"}
        order = shared.get(module, module) if module not in own_order else module
        layer = random_layer(outputs, inputs, group, seed=sum(name.encode()), **options)
        same = random_layer(8, inputs, group, seed=sum(order.encode()), **options)
        layer = Layer(layer.numbers, layer.scales, layer.zeros, same.group_of_inputs)
        return layer, pack(layer)

    return make


def transformers_logits(folder: Path) -> list[torch.Tensor]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return [model(torch.tensor([prompt])).logits[0] for prompt in PROMPTS]


CASES: dict[str, tuple[Make, dict[str, Any]]] = {
    "gptq": (maker(gptq_tensors), GPTQ),
    "gptq symmetric": (maker(gptq_tensors, symmetric=True), {**GPTQ, "sym": True}),
    "gptq one group": (maker(gptq_tensors, group=-1), {**GPTQ, "group_size": -1}),
    "gptq group that does not divide": (maker(gptq_tensors, group=48), {**GPTQ, "group_size": 48}),
    "gptq_v2": (maker(partial(gptq_tensors, less=0)), {**GPTQ, "checkpoint_format": "gptq_v2"}),
    "gptq act-order": (maker(gptq_tensors, reordered=True), {**GPTQ, "desc_act": True}),
    "gptq orders that differ": (
        maker(gptq_tensors, reordered=True, own_order=("k_proj", "up_proj")),
        {**GPTQ, "desc_act": True},
    ),
    "gptq with its head": (maker(gptq_tensors, kept=()), {**GPTQ, "lm_head": True}),
    "gptq with plain layers": (maker(gptq_tensors, kept=("lm_head", "o_proj", "layers.1.self_attn.k_proj")), GPTQ),
    "awq": (maker(awq_tensors), AWQ),
    "awq with plain layers": (
        maker(awq_tensors, kept=("lm_head", "down_proj")),
        {**AWQ, "modules_to_not_convert": ["down_proj"]},
    ),
    "compressed-tensors": (maker(compressed_tensors, symmetric=True), COMPRESSED),
    "compressed-tensors with zeros": (
        maker(partial(compressed_tensors, symmetric=False)),
        {**COMPRESSED, "config_groups": {"a": {"weights": {**WEIGHTS, "symmetric": False}}}},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_dequantized_weights(case: str, plain: Path, tmp_path: Path) -> None:
    make, config = CASES[case]
    packed, floats = pack_checkpoint(plain, tmp_path, make, config)
    expected = transformers_logits(floats)
    model = load_engine_model(packed)
    linears = [linear for _, linear in model.linears()]
    assert any(isinstance(linear.kernel, TorchInt4Linear) for linear in linears)
    for _ in range(2):
        actual = teacher_forced_logits(model, PROMPTS, chunk=16)
        for mine, theirs in zip(actual, expected, strict=True):
            assert (mine - theirs).abs().max() < 1e-4
        use_int4_backend("c", linears)  # the second time
    runs_in_c = any(isinstance(linear.kernel, CpuInt4Linear) for linear in linears)
    assert runs_in_c == ("does not divide" not in case), "groups of 16, which C does not take, are left to torch"


def test_an_engine_says_how_its_weights_are_kept(plain: Path, tmp_path: Path) -> None:
    packed, _ = pack_checkpoint(plain, tmp_path, *CASES["awq"])
    info = start(packed, quantization="awq").core.info
    assert (info.quantization, info.linear_backend) == ("awq", "c")
    assert start(packed).core.info.quantization == "awq"
    assert info.weight_bytes < start(plain).core.info.weight_bytes


def start(folder: Path, **options: Any) -> LLM:
    return LLM(EngineConfig(model=str(folder), kv_cache_memory_bytes=2**22, threads=1, device="cpu", **options))


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(StartupError) as raised:
        start(folder, **options)
    assert "\n" not in str(raised.value)
    return str(raised.value)


LAYER = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda tensors: tensors.pop(f"{LAYER}.qzeros"),
            f"weight {LAYER}.qzeros is missing beside {LAYER}.qweight: gptq needs it",
        ),
        (lambda tensors: tensors.pop(f"{LAYER}.scales"), f"weight {LAYER}.scales is missing beside"),
        (lambda tensors: tensors.pop(f"{LAYER}.g_idx"), f"weight {LAYER}.g_idx is missing beside"),
        (lambda tensors: tensors.pop(f"{LAYER}.qweight"), f"weight {LAYER}.weight is missing in "),
        (
            lambda tensors: tensors.update({f"{LAYER}.qweight": tensors[f"{LAYER}.qweight"][:4].contiguous()}),
            f"weight {LAYER}.qweight has shape (4, 64), but a layer of 64 outputs and 64 inputs with 4 bits and groups "
            "of 32 has (8, 64): the files do not fit config.json",
        ),
        (
            lambda tensors: tensors.update({f"{LAYER}.qweight": tensors[f"{LAYER}.qweight"].long()}),
            f"weight {LAYER}.qweight holds torch.int64, and this engine reads",
        ),
        (
            lambda tensors: tensors[f"{LAYER}.g_idx"].fill_(7),
            f"weight {LAYER}.g_idx names groups 7 to 7, but there are only 0 to 1: the file is damaged",
        ),
        (
            lambda tensors: tensors.update({f"{LAYER}.scales": tensors[f"{LAYER}.scales"].int()}),
            f"weight {LAYER}.scales holds torch.int32, not floats",
        ),
    ],
)
def test_damaged_layers(
    change: Callable[[dict[str, torch.Tensor]], object], sentence: str, plain: Path, tmp_path: Path
) -> None:
    packed, _ = pack_checkpoint(plain, tmp_path, *CASES["gptq act-order"])
    edit(packed, change)
    assert sentence in refusal(packed)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            {**GPTQ, "bits": 8},
            "is quantized with gptq to 8 bits, and this engine reads 4; use such a one, or the plain",
        ),
        ({**GPTQ, "group_size": 0}, "group_size 0 in config.json is no number of inputs"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format marlin of this GPTQ checkpoint is not read; use"),
        (
            {**AWQ, "version": "gemv"},
            "version gemv of this AWQ checkpoint is not read; use one packed with version gemm",
        ),
        (
            {"quant_method": "fp8"},
            "quantized with fp8 (quant_method in config.json), which is not read; use",
        ),
        ({"bits": 4}, "quantized with unknown (quant_method in config.json)"),
        ({**COMPRESSED, "format": "float-quantized"}, "format float-quantized of this compressed-tensors checkpoint"),
        (
            {**COMPRESSED, "config_groups": {"a": {"weights": {**WEIGHTS, "num_bits": 8}}}},
            "is quantized with compressed-tensors to 8 bits",
        ),
        (
            {**COMPRESSED, "config_groups": {"a": {"weights": WEIGHTS, "input_activations": {"num_bits": 8}}}},
            "also quantizes activations",
        ),
        (
            {
                **COMPRESSED,
                "config_groups": {"a": {"weights": WEIGHTS}, "b": {"weights": {**WEIGHTS, "group_size": 64}}},
            },
            "the 2 config_groups of this compressed-tensors checkpoint differ",
        ),
    ],
)
def test_formats_that_are_not_read(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(StartupError) as raised:
        packed_format(config)
    assert sentence in str(raised.value)


def test_checkpoints_and_flags_that_do_not_fit(plain: Path, tmp_path: Path) -> None:
    packed, _ = pack_checkpoint(plain, tmp_path, *CASES["gptq"])
    assert "--quantization int8: the checkpoint is quantized with gptq already" in refusal(packed, quantization="int8")
    assert "--quantization awq: the checkpoint is quantized with gptq" in refusal(packed, quantization="awq")
    assert "--quantization gptq: config.json names no quantization_config" in refusal(plain, quantization="gptq")
    assert "--model-impl transformers: checkpoints quantized with gptq are read for" in refusal(
        packed, model_impl="transformers"
    )
    assert "--linear-backend onednn has no 4-bit weights" in refusal(packed, linear_backend="onednn")
    mislabelled, _ = pack_checkpoint(plain, tmp_path / "plain", lambda *_: None, GPTQ)
    assert "config.json says that the weights are quantized with gptq, but no layer has a qweight" in refusal(
        mislabelled
    )
    unlabelled = json.loads((packed / "config.json").read_text())
    del unlabelled["quantization_config"]
    (packed / "config.json").write_text(json.dumps(unlabelled))
    assert f"weight {LAYER}.weight is missing" in refusal(packed)


def test_zero_points_of_gptq_reach_16(plain: Path, tmp_path: Path) -> None:
    """4 bits hold 15, which stands for 16."""

    def make(name: str, outputs: int, inputs: int) -> tuple[Layer, dict[str, Numbers]] | None:
        if name == "lm_head":
            return None
        layer = random_layer(outputs, inputs, 32)
        layer = Layer(layer.numbers, layer.scales, np.full_like(layer.zeros, 16), layer.group_of_inputs)
        return layer, gptq_tensors(layer)

    packed, floats = pack_checkpoint(plain, tmp_path, make, GPTQ)
    actual = teacher_forced_logits(load_engine_model(packed), PROMPTS[:1], chunk=16)[0]
    assert torch.allclose(actual, transformers_logits(floats)[0], atol=1e-4)
