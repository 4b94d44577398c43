"""4-bit rounding of a trained model: calibration keeps its answers nearer than rounding to nearest does.

Three of SmolLM2's 30 layers, because all of them take minutes; engine_image/NOTES.md has those.
"""

import inspect
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from pagefleet.engine.bench.quality_text import SHIPPED_TEXT
from pagefleet.engine.gguf_conversion import convert
from pagefleet.engine.model_source import resolve_model
from pagefleet.engine.quantize.calibration import read_windows
from pagefleet.engine.quantize.decoder_layers import LayerRunner, layers_of
from pagefleet.engine.quantize.run import CALIBRATED, QuantizeOptions, round_layer
from tests.support.models import smollm2

LAYERS = range(10, 13)
GROUP = 64
MOST_KL_NATS = {"int4": 0.08, "gptq": 0.03, "awq": 0.02}


@pytest.mark.real_model
@torch.inference_mode()
def test_rounding_three_layers_of_smollm2(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    source = convert(resolve_model(smollm2(), lambda _: None))
    model = AutoModelForCausalLM.from_pretrained(source.folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(source.folder)
    ids = torch.tensor([tokenizer(SHIPPED_TEXT.read_text())["input_ids"][:256]])
    expected = model(ids).logits[0].log_softmax(-1)
    text = tmp_path / "text.txt"
    text.write_text(inspect.getsource(statistics))  # code and prose, and none of the shipped text
    windows = read_windows(text, tokenizer, samples=4, window_tokens=256, vocabulary_size=model.config.vocab_size)
    rounded = layers_of(model)[LAYERS.start : LAYERS.stop]
    plain = {name: tensor.clone() for name, tensor in rounded.state_dict().items()}
    found: dict[str, float] = {}
    for method in MOST_KL_NATS:
        rounded.load_state_dict(plain)
        options = QuantizeOptions(model="", method=method, output=tmp_path)
        round_layers(model, windows, options)
        logits = model(ids).logits[0].log_softmax(-1)
        found[method] = float((expected.exp() * (expected - logits)).sum(-1).mean())
    assert {method: kl for method, kl in found.items() if kl > MOST_KL_NATS[method]} == {}
    assert max(found["gptq"], found["awq"]) < 0.6 * found["int4"]


def round_layers(model: Any, windows: torch.Tensor, options: QuantizeOptions) -> None:
    runner = LayerRunner(model, windows) if options.method in CALIBRATED else None
    for index, layer in enumerate(layers_of(model)[: LAYERS.stop]):
        if index in LAYERS:
            round_layer(layer, index, runner, options, GROUP)
        elif runner is not None:
            runner.advance(index)
