"""`pagefleet quantize`: what it writes is read back, calibration helps, and nothing is half-written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pagefleet.cli.main import run
from pagefleet.engine.errors import StartupError
from pagefleet.engine.layers.int4 import dequantize
from pagefleet.engine.layers.int4_linear import TorchInt4Linear
from pagefleet.engine.model_source import ModelSource
from pagefleet.engine.quantize.awq import best_scales, smooth
from pagefleet.engine.quantize.decoder_layers import LayerRunner, layers_of
from pagefleet.engine.quantize.gptq import round_with_moments
from pagefleet.engine.quantize.moments import InputMoments, collect_moments
from pagefleet.engine.quantize.rounded import round_to_nearest
from pagefleet.engine.quantize.run import QuantizeOptions, run_quantize
from pagefleet.engine.weights import load_config
from tests.engine.kernels.test_cpu_linear import random
from tests.support.forward import load_engine_model, teacher_forced_logits
from tests.support.packed_checkpoints import AWQ_OUTPUTS
from tests.support.tiny_families import family_config
from tests.support.tiny_models import make_byte_level_tokenizer, make_tiny_llama, save_random_model

TEXT = " ".join(f"{number} little houses and {number * number} foxes" for number in range(300))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_llama(tmp_path_factory.mktemp("model"), hidden=64, head_dim=16, kv_heads=4, weight_scale=0.2)
    return make_byte_level_tokenizer(folder)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def quantize(model: Path, output: Path, method: str, text: Path | None, **options: Any) -> Path:
    settings = {"samples": 8, "window_tokens": 64, "threads": 1, **options}
    calibration = None if method.startswith("int") else text
    lines: list[str] = []
    run_quantize(
        QuantizeOptions(model=str(model), method=method, output=output, calibration=calibration, **settings),
        lines.append,
    )
    rounding = "8 bits, a scale for each output" if method == "int8" else "4 bits, groups of "
    assert lines[0].startswith(f"{output}: 14 linears in {rounding}")
    return output


def logits_of(folder: Path) -> torch.Tensor:
    """Return the logits of a text of the kind that is calibrated on."""
    from transformers import AutoTokenizer

    prompt = AutoTokenizer.from_pretrained(folder)(TEXT[5000:5600])["input_ids"][:200]
    return teacher_forced_logits(load_engine_model(folder), [prompt], chunk=32)[0]


def is_near(rounded: torch.Tensor, plain: torch.Tensor) -> bool:
    """Random weights of 64 inputs stand 4 bits badly; logits of another model would be 1.1 away."""
    return bool((rounded - plain).abs().mean() < 0.6 * plain.std())


def correlated_rows(tokens: int, inputs: int) -> torch.Tensor:
    """Inputs of different strength that depend on each other, as activations do."""
    return random(tokens, inputs) @ (random(inputs, inputs, seed=1) * torch.linspace(0.1, 4, inputs)[:, None])


def moments_of(rows: torch.Tensor) -> InputMoments:
    moments = InputMoments(rows.shape[1])
    moments.add(rows[:100])
    moments.add(rows[100:])
    return moments


def test_gptq_changes_the_outputs_less_than_rounding_to_nearest() -> None:
    rows, weight = correlated_rows(400, 64), random(40, 64, seed=2)
    plain = round_to_nearest(weight, 32)
    rounded = round_with_moments(weight, moments_of(rows).products, 32, damping=0.01)
    plain_error, error = ((rows @ (each.values() - weight).T).square().mean() for each in (plain, rounded))
    assert error < 0.5 * plain_error
    assert torch.equal(rounded.scales, plain.scales)


def test_gptq_of_independent_inputs_is_rounding_to_nearest() -> None:
    weight = random(40, 64, seed=2)
    rounded = round_with_moments(weight, torch.eye(64), 32, damping=1e-6)
    assert torch.equal(rounded.numbers, round_to_nearest(weight, 32).numbers)


def test_gptq_of_inputs_that_are_never_there() -> None:
    rows = correlated_rows(400, 64)
    rows[:, 7] = 0
    weight = random(8, 64, seed=2)
    rounded = round_with_moments(weight, moments_of(rows).products, 32, damping=0.01)
    assert (rounded.values()[:, 7].abs() < 1e-6).all()


def test_awq_scales_change_the_outputs_less() -> None:
    rows, weight = random(400, 64), random(40, 64, seed=2)
    rows[:, [3, 40]] *= 30  # as in language models: few inputs, far stronger than the rest
    scales = best_scales([weight[:10], weight[10:]], moments_of(rows), 32)
    scaled = round_to_nearest(weight * scales, 32).values() / scales
    plain = round_to_nearest(weight, 32).values()
    plain_error, error = ((rows @ (each - weight).T).square().mean() for each in (plain, scaled))
    assert error < 0.7 * plain_error


@pytest.mark.parametrize("method", ["gptq", "awq", "int4"])
def test_the_engine_reads_what_is_written(model: Path, text: Path, tmp_path: Path, method: str) -> None:
    folder = quantize(model, tmp_path / "out", method, text)
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert (config["bits"], config["group_size"]) == (4, 64)
    assert config["quant_method"] == ("awq" if method == "awq" else "gptq")
    assert load_config(ModelSource(folder)).architectures == ["LlamaForCausalLM"]
    names = {path.name for path in folder.iterdir()}
    assert {"generation_config.json", "tokenizer.json", "tokenizer_config.json"} <= names
    loaded = [linear.kernel for _, linear in load_engine_model(folder).linears()]
    down = [kernel for kernel in loaded if isinstance(kernel, TorchInt4Linear)][3]
    tensors = load_file(folder / "model.safetensors")
    assert torch.equal(dequantize(down.weight), stored_values(tensors, "model.layers.0.mlp.down_proj", method))
    assert is_near(logits_of(folder), logits_of(model))


def stored_values(tensors: dict[str, torch.Tensor], name: str, method: str) -> torch.Tensor:
    """Return what the stored tensors stand for, number by number."""
    words, zeros, scales = (tensors[f"{name}.{part}"].long() & 0xFFFFFFFF for part in ("qweight", "qzeros", "scales"))
    scales = tensors[f"{name}.scales"].float()
    inputs, outputs = scales.shape[0] * 64, scales.shape[1]
    values = torch.empty(outputs, inputs)
    place = {output: index for index, output in enumerate(AWQ_OUTPUTS if method == "awq" else range(8))}
    for output in range(outputs):
        for column in range(inputs):
            group, bits = column // 64, 4 * place[output % 8]
            zero = (int(zeros[group, output // 8]) >> bits & 15) + (0 if method == "awq" else 1)
            if method == "awq":
                number = int(words[column, output // 8]) >> bits & 15
            else:
                number = int(words[column // 8, output]) >> 4 * (column % 8) & 15
            values[output, column] = (number - zero) * scales[group, output]
    return values


@pytest.mark.parametrize("family", ["gemma3", "phi3", "qwen2"])
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_families(tmp_path: Path, text: Path, family: str, method: str) -> None:
    """Other norms, windows by layer, fused linears, biases."""
    config = family_config(family)
    config.hidden_size, config.intermediate_size = 64, 96
    folder = save_random_model(config, tmp_path / "model", weight_scale=0.1)
    make_byte_level_tokenizer(folder, vocab=config.vocab_size)
    plain, errors = logits_of(folder), {}
    for each in ("int4", method):
        options = QuantizeOptions(
            model=str(folder),
            method=each,
            output=tmp_path / each,
            calibration=None if each == "int4" else text,
            samples=16,
            window_tokens=64,
            threads=1,
        )
        run_quantize(options, lambda _: None)
        errors[each] = float((logits_of(tmp_path / each) - plain).abs().mean())
    assert errors[method] < 1.2 * errors["int4"], "no calibration does much worse than none"


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "phi3", "qwen3"])
@torch.inference_mode()
def test_smoothing_alone_changes_no_answer(family: str) -> None:
    from transformers import AutoModelForCausalLM

    config = family_config(family)
    config.hidden_size, config.intermediate_size = 64, 96
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    windows = torch.arange(240).view(4, 60) % config.vocab_size
    before = plain(windows).logits
    runner = LayerRunner(plain, windows)
    changed: set[str] = set()
    for index, layer in enumerate(layers_of(plain)):
        linears = {name: module for name, module in layer.named_modules() if isinstance(module, torch.nn.Linear)}
        with collect_moments(linears) as moments:
            runner.run(index)
        old = {name: linear.weight.clone() for name, linear in linears.items()}
        smooth(dict(layer.named_modules()), moments, 32)
        changed |= {name for name, linear in linears.items() if not torch.equal(old[name], linear.weight)}
        runner.advance(index)
    assert len(changed) >= 2
    assert torch.allclose(plain(windows).logits, before, atol=1e-4)


def test_nothing_is_left_of_what_fails(
    model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pagefleet.engine.quantize.run.write_checkpoint", fail)
    with pytest.raises(KeyboardInterrupt):
        quantize(model, tmp_path / "new" / "out", "int4", None)
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"method": "nf4"}, "--method nf4 is unknown; use gptq, awq, int4, int8"),
        ({"calibration": None}, "--method gptq needs --calibration FILE"),
        ({"method": "int4"}, "--calibration is read by gptq and awq alone"),
        ({"form": "awq"}, "--format awq does not hold what --method gptq makes; use gptq or compressed-tensors"),
        ({"method": "int8", "calibration": None, "form": "gptq"}, "makes; use compressed-tensors"),
        ({"method": "int8", "calibration": None, "group_size": 64}, "--group-size 64 is for 4 bits: int8 has"),
        ({"group_size": 48}, "--group-size 48 is not 128, 64, 32; use 128"),
        ({"group_size": 128}, "--group-size 128 does not divide the 64, 128 inputs of all linears; use 64"),
        ({"damping": 0.0}, "--damping 0 is no share above 0; use 0.01"),
        ({"window_tokens": 1000}, "--window 1000 does not fit this model's context; use 512 or less"),
        ({"samples": 1000}, "tokens, and 1000 samples of 64 need 64000: give a longer text, or --samples "),
        ({"calibration": Path("none.txt")}, "--calibration none.txt cannot be read: No such file or directory"),
    ],
)
def test_refusals(model: Path, text: Path, tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    settings: dict[str, Any] = {"method": "gptq", "calibration": text, "samples": 8, "window_tokens": 64, **options}
    with pytest.raises(StartupError) as raised:
        run_quantize(QuantizeOptions(model=str(model), output=tmp_path / "out", threads=1, **settings), print)
    assert sentence in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_what_is_there_already(model: Path, text: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    folder = quantize(model, output, "int4", None)  # an empty one serves
    with pytest.raises(StartupError, match=r"^-o .*out exists and is not an empty folder; name a new one"):
        quantize(model, output, "int4", None)
    with pytest.raises(StartupError, match="is quantized already; give the plain one"):
        quantize(folder, tmp_path / "again", "int4", None)


def test_the_command(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    assert run(["quantize", str(model), "--method", "int4", "-o", str(output), "--threads", "1"]) == 0
    assert f"pagefleet engine serve {output}" in capfd.readouterr().out
    assert run(["quantize", str(model), "-o", str(tmp_path / "b")]) == 2
    assert "--method gptq needs --calibration FILE" in capfd.readouterr().err
