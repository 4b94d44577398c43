"""The planner's table of what the engine has and takes, against the engine itself."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from pagefleet.api.v1alpha1 import KvCacheDtype, WeightQuantization
from pagefleet.capacity import PlanRequest, find_accelerator, make_plan, read_model
from pagefleet.capacity.engine_profile import PAGEFLEET_CPU, PAGEFLEET_CUDA, EngineProfile
from pagefleet.capacity.kv_formats import AUTO, KV_FORMATS, kv_block_bytes, kv_reserve_bytes, resolve_kv_format
from pagefleet.capacity.weight_facts import Role
from pagefleet.capacity.weight_formats import DTYPE_BYTES, WEIGHT_FORMATS, weights_bytes
from pagefleet.cli import engine_command
from pagefleet.cli.main import run
from pagefleet.cli.plan.safetensors_headers import read_headers, read_json
from pagefleet.engine.checkpoint_format import METHODS
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.device import DTYPES
from pagefleet.engine.kernels.interface import AttentionShape
from pagefleet.engine.kernels.packed_format import PACKED_FORMATS
from pagefleet.engine.llm import LLM
from pagefleet.engine.model_source import ModelSource
from pagefleet.engine.models.registry import load_model
from pagefleet.engine.quantization import QUANTIZATIONS
from pagefleet.engine.startup import DEFAULT_BUDGET_TOKENS, SAMPLING_COPIES
from pagefleet.engine.weights import load_config
from pagefleet.operator.plan.engine_arguments import KV_CACHE_FLAGS
from tests.support.checkpoints import dense
from tests.support.tiny_families import family_config
from tests.support.tiny_models import save_random_model

WIDE = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}

PROFILES = pytest.mark.parametrize(
    ("profile", "device"), [(PAGEFLEET_CPU, "cpu"), (PAGEFLEET_CUDA, "cuda")], ids=["cpu", "cuda"]
)


@PROFILES
def test_the_defaults_are_the_engines(profile: EngineProfile, device: str) -> None:
    config = EngineConfig(model="m")
    assert profile.max_num_seqs == config.max_num_seqs
    assert profile.gpu_memory_utilization == config.gpu_memory_utilization
    assert profile.max_num_batched_tokens == DEFAULT_BUDGET_TOKENS[device]
    assert profile.sampling_bytes_per_logit == 4 * SAMPLING_COPIES


@PROFILES
def test_the_formats_are_the_engines(profile: EngineProfile, device: str) -> None:
    """Whoever gives the engine a format finds here that the planner's table lacks it."""
    assert {resolve_kv_format(name, "bfloat16") for name in KV_CACHE_FLAGS} <= set(profile.kv_cache)
    words = {"bf16" if name == "bfloat16" else name for name in (*DTYPES, *PACKED_FORMATS)}
    assert set(profile.kv_cache) == words
    assert set(DTYPE_BYTES) == set(DTYPES)
    assert profile.weights == tuple(name for name in QUANTIZATIONS if device == "cpu" or name != "int8")
    assert profile.checkpoints == (None, *METHODS)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_plan_can_be_typed_as_the_engines_flags(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[EngineConfig] = []

    def keep(engine: EngineConfig, _: object) -> int:
        started.append(engine)
        return 0

    monkeypatch.setattr(engine_command, "_run", keep)
    facts = read_model(
        "m", *dense(layers=2, hidden=64, intermediate=128, heads=4, kv_heads=2, head_dim=16, vocabulary=512)
    )
    accelerator = find_accelerator("cpu", memory_bytes=2**35)
    plan = make_plan(PlanRequest(model=facts, accelerator=accelerator, engine=PAGEFLEET_CPU, dtype=dtype))
    assert (
        run(["engine", "serve", "m", *(text for each in plan.choices for text in (f"--{each.knob}", each.value))]) == 0
    )
    assert (started[0].dtype, started[0].kv_cache_dtype, started[0].quantization) == (dtype, dtype, "none")
    assert started[0].max_num_seqs == plan.knobs.max_num_seqs


def test_the_words_are_the_resources() -> None:
    assert {word.value for word in KvCacheDtype} <= {AUTO, *KV_FORMATS}
    assert {word.value for word in WeightQuantization} == set(WEIGHT_FORMATS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "phi3"])
def test_bytes_are_the_engines(family: str, dtype: str, tmp_path: Path) -> None:
    """Weights, cache and activations of a model that the engine has loaded are as predicted, to the byte."""
    folder = save_random_model(family_config(family), tmp_path / "model")
    facts = read_model("m", read_json(folder / "config.json"), read_headers(folder))
    source = ModelSource(folder)
    model = load_model(load_config(source), source, dtype=DTYPES[dtype], device=torch.device("cpu"))
    cache_dtype = "bf16" if dtype == "bfloat16" else dtype
    shape = AttentionShape(
        layers=len(model.layer_attention),
        query_heads=model.query_heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        scale=1.0,
        block_size=16,
        cache_dtype=DTYPES[dtype],
        device=torch.device("cpu"),
        layer_attention=model.layer_attention,
    )
    assert kv_block_bytes(facts.architecture, cache_dtype, block_size=16) == shape.bytes_per_block
    assert PAGEFLEET_CPU.activation_values_per_token(facts.architecture) == model.activation_values_per_token
    predicted = weights_bytes(facts, quantization="none", compute_dtype=dtype, copies_tied_head=False)
    # Gemma's norms are kept in float32 whatever the compute type is.
    norms = facts.weights.count(Role.REPLICATED) if family == "gemma3" else 0
    assert predicted <= model.weight_bytes <= predicted + 2 * norms
    assert facts.architecture.windows == tuple(layer.window for layer in model.layer_attention)


@pytest.mark.parametrize("name", PACKED_FORMATS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packed_caches_take_the_bytes_predicted(name: str, dtype: str, tmp_path: Path) -> None:
    folder = save_random_model(LlamaConfig(**WIDE), tmp_path / "model")
    architecture = read_model("m", read_json(folder / "config.json"), read_headers(folder)).architecture
    llm = LLM(
        EngineConfig(
            model=str(folder),
            dtype=dtype,
            kv_cache_dtype=name,
            kv_cache_memory_bytes=2**26,
            max_num_seqs=4,
            max_num_batched_tokens=200,
            threads=1,
        )
    )
    info = llm.core.info
    size = KV_FORMATS[name].usual_block_size
    blocks = info.blocks_total * kv_block_bytes(architecture, name, block_size=size)
    reserve = kv_reserve_bytes(architecture, name, compute_dtype=dtype, block_size=size, sequences=4, step_tokens=200)
    assert (info.block_size, info.kv_cache_bytes) == (size, blocks + reserve)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("quantization", "error"), [("int8", 0.01), ("int4", 0)])
def test_rounded_weights_take_the_bytes_predicted(quantization: str, error: float, dtype: str, tmp_path: Path) -> None:
    folder = save_random_model(LlamaConfig(**WIDE), tmp_path / "model")
    facts = read_model("m", read_json(folder / "config.json"), read_headers(folder))
    llm = LLM(
        EngineConfig(model=str(folder), dtype=dtype, quantization=quantization, kv_cache_memory_bytes=2**22, threads=1)
    )
    predicted = weights_bytes(facts, quantization=quantization, compute_dtype=dtype, copies_tied_head=True)
    assert predicted == pytest.approx(llm.core.info.weight_bytes, rel=error)
