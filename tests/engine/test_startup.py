"""Wrong models and settings: one sentence each, with a value that would work."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.errors import StartupError
from pagefleet.engine.llm import LLM
from pagefleet.engine.messages import StartupProgress
from pagefleet.engine.sampling_params import SamplingParameters
from pagefleet.engine.stages import StageClock
from pagefleet.engine.startup import start_engine
from tests.support.tiny_models import make_tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "model"))


def start(model: Path | str, **options: Any) -> LLM:
    defaults: dict[str, Any] = {"kv_cache_memory_bytes": 2**22, "threads": 1}
    return LLM(EngineConfig(model=str(model), **{**defaults, **options}))


def refusal(model: Path | str, **options: Any) -> str:
    with pytest.raises(StartupError) as error:
        start(model, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def edit_config(folder: Path, **changes: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


def test_what_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    assert refusal("/no/such/folder") == (
        "model /no/such/folder does not exist; give a folder, a .gguf file or a hub id such as org/name"
    )
    assert "has a scheme the engine cannot open" in refusal("s3://bucket/model")
    assert "package no_such_package is not installed" in refusal("package://no_such_package/model.gguf")
    assert "package json has no file model.gguf" in refusal("package://json/model.gguf")
    assert "package json has no file ../secret" in refusal("package://json/../secret")
    assert "holds neither config.json nor a .gguf file" in refusal(tmp_path)
    assert "weights.bin is no model" in refusal(tmp_path / "weights.bin")


def test_a_hub_id_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert refusal("nobody/nothing-here") == (
        "model nobody/nothing-here is not in the local cache and HF_HUB_OFFLINE=1 forbids a download; "
        "give a path instead"
    )


def test_missing_weights(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    assert "holds no model.safetensors and no model.safetensors.index.json" in refusal(copy)
    (copy / "pytorch_model.bin").touch()
    assert "convert its .bin files to safetensors" in refusal(copy)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def scribble(path: Path) -> None:
    path.write_bytes(b"\xff" * 100)


@pytest.mark.parametrize("damage", [truncate, scribble])
def test_corrupt_weights(copy: Path, damage: Callable[[Path], None]) -> None:
    damage(copy / "model.safetensors")
    assert "is corrupt or incomplete" in refusal(copy)


def test_corrupt_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + b"\x00" * 50)
    assert f"the configuration of {path} cannot be read" in refusal(path)


def test_config_that_is_not_json(copy: Path) -> None:
    (copy / "config.json").write_text("{")
    assert "the configuration of" in refusal(copy)


def test_unsupported_architecture(copy: Path) -> None:
    edit_config(copy, architectures=["BloomForCausalLM"], model_type="bloom")
    assert refusal(copy) == (
        "architecture BloomForCausalLM does not run on the transformers back end: its attention does not go through "
        "transformers' attention interface"
    )


def test_unsupported_parts(copy: Path) -> None:
    edit_config(copy, hidden_act="gelu_fast")
    assert refusal(copy) == (
        "the model's activation is gelu_fast; this engine computes silu, gelu, gelu_pytorch_tanh, relu"
    )
    edit_config(copy, hidden_act="silu", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    assert "rope type dynamic changes with the length" in refusal(copy)


def test_weights_of_another_model(copy: Path, tmp_path: Path) -> None:
    edit_config(copy, num_hidden_layers=3)
    assert "weight model.layers.2.input_layernorm.weight is missing" in refusal(copy)
    edit_config(copy, num_hidden_layers=2, intermediate_size=65)
    assert "has shape (64, 32), config.json says (65, 32)" in refusal(copy)


def test_sharded_weights(copy: Path) -> None:
    from transformers import AutoModelForCausalLM

    whole = start(copy)
    AutoModelForCausalLM.from_pretrained(copy).save_pretrained(copy / "sharded", max_shard_size="40KB")
    assert len(list((copy / "sharded").glob("model-*.safetensors"))) > 1
    greedy = SamplingParameters(max_tokens=8, temperature=0.0)
    assert start(copy / "sharded").generate([[5, 6]], greedy) == whole.generate([[5, 6]], greedy)
    next((copy / "sharded").glob("model-00002-*")).unlink()
    assert "is missing: is the download complete?" in refusal(copy / "sharded")


def test_damaged_numbers(copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(copy / "model.safetensors")
    tensors["model.norm.weight"][:] = float("nan")
    save_file(tensors, copy / "model.safetensors")
    assert refusal(copy) == "the model's first logits are not finite: the weights are damaged"


def test_settings(folder: Path) -> None:
    assert "--max-model-len 1000 is longer than the model's context: use at most 512" in refusal(
        folder, max_model_len=1000
    )
    assert "one sequence of 512 tokens needs" in refusal(folder, max_model_len=512, kv_cache_memory_bytes=4096)
    assert "--max-num-batched-tokens 8 is less than --max-num-seqs 16" in refusal(
        folder, max_num_batched_tokens=8, max_num_seqs=16
    )
    assert "--dtype float64 is not supported; use auto, bfloat16 or float32" in refusal(folder, dtype="float64")
    assert "--kv-cache-dtype fp4 is not supported" in refusal(folder, kv_cache_dtype="fp4")
    assert "fp8 needs the Triton attention kernel" in refusal(folder, kv_cache_dtype="fp8")
    assert "--block-size 24 is illegal with --kv-cache-dtype int8" in refusal(
        folder, kv_cache_dtype="int8", block_size=24
    )
    assert "--device tpu is unknown" in refusal(folder, device="tpu")
    assert "leaves no memory for the KV cache" in refusal(
        folder, kv_cache_memory_bytes=None, gpu_memory_utilization=0.001
    )


def test_stages_are_reported_and_timed(folder: Path) -> None:
    seen: list[StartupProgress] = []
    core = start_engine(
        EngineConfig(model=str(folder), kv_cache_memory_bytes=2**22, threads=1), StageClock(seen.append)
    )
    assert [progress.stage for progress in seen] == ["download", "load", "measure", "allocate", "warm_up"]
    assert list(core.info.stage_seconds) == ["download", "load", "measure", "allocate", "warm_up"]
    assert core.info.model_impl == "native"
    assert core.state().steps_total == 0, "the warm-up is not counted"


def test_the_cache_shrinks_the_context_when_no_length_is_asked(folder: Path) -> None:
    info = start(folder, kv_cache_memory_bytes=2**15).core.info
    assert info.max_model_len == info.blocks_total * 16 < 512


def test_a_narrower_cache(folder: Path) -> None:
    narrow, wide = start(folder, kv_cache_dtype="bfloat16"), start(folder)
    assert narrow.core.info.kv_cache_dtype == "bfloat16"
    assert narrow.core.info.blocks_total == 2 * wide.core.info.blocks_total
    greedy = SamplingParameters(max_tokens=8, temperature=0.0)
    assert len(narrow.generate([[5, 6, 7]], greedy)[0].token_ids) == 8
