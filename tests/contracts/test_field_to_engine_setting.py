"""One field from manifest to engine: type → rendered argument → flag → the setting that the core gets."""

from typing import Any

import pytest

from pagefleet.api.v1alpha1 import EngineSpec, InferenceService
from pagefleet.cli import engine_command
from pagefleet.cli.main import run
from pagefleet.engine.config import EngineConfig, ServerConfig
from pagefleet.operator.plan.engine_arguments import find_unsupported, render_engine_arguments

Configs = tuple[EngineConfig, ServerConfig]

# Field of spec.engine in YAML, a value, and the setting with its value in the engine.
SETTINGS: list[tuple[str, Any, str, Any]] = [
    ("blockSize", 32, "block_size", 32),
    ("gpuMemoryUtilization", 0.5, "gpu_memory_utilization", 0.5),
    ("maxModelLen", 4096, "max_model_len", 4096),
    ("maxNumSeqs", 7, "max_num_seqs", 7),
    ("maxNumBatchedTokens", 600, "max_num_batched_tokens", 600),
    ("prefixCaching", True, "enable_prefix_caching", True),
    ("prefixCaching", False, "enable_prefix_caching", False),
    ("batching", "static", "batching", "static"),
    ("weights", {"quantization": "int8"}, "quantization", "int8"),
    ("weights", {"quantization": "int4"}, "quantization", "int4"),
    ("weights", {"quantization": "gptq"}, "quantization", "gptq"),
    ("weights", {"quantization": "awq"}, "quantization", "awq"),
    ("weights", {"quantization": "none"}, "quantization", "none"),
    ("kvCache", {"dtype": "bf16"}, "kv_cache_dtype", "bfloat16"),
    ("kvCache", {"dtype": "auto"}, "kv_cache_dtype", "auto"),
    ("kvCache", {"dtype": "k4v3"}, "kv_cache_dtype", "k4v3"),
]

# Fields whose values ask for what the engine cannot do are refused, and so cannot be ignored.
REFUSED: list[tuple[str, Any]] = [
    ("weights", {"quantization": "sparse24"}),
    ("parallelism", {"tensor": 2}),
    ("speculative", {"method": "ngram", "tokens": 4}),
]


def make_service(engine: dict[str, Any], uri: str = "hf://organisation/model") -> InferenceService:
    manifest = {"metadata": {"name": "chat"}, "spec": {"model": {"uri": uri}, "engine": engine}}
    return InferenceService.from_manifest(manifest)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Configs]:
    """Collect what `engine serve` would start with."""
    configs: list[Configs] = []

    def keep(engine: EngineConfig, server: ServerConfig) -> int:
        configs.append((engine, server))
        return 0

    monkeypatch.setattr(engine_command, "_run", keep)
    return configs


def configure(service: InferenceService, started: list[Configs]) -> Configs:
    arguments = render_engine_arguments(
        service, model="organisation/model", host="127.0.0.1", port=8123, admin_port=9123
    )
    assert run(arguments) == 0
    return started.pop()


@pytest.mark.parametrize(("field", "value", "setting", "expected"), SETTINGS)
def test_a_field_reaches_the_engine(
    started: list[Configs], field: str, value: Any, setting: str, expected: Any
) -> None:
    engine, _ = configure(make_service({field: value}), started)
    assert getattr(engine, setting) == expected


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_a_field_that_the_engine_cannot_do_is_refused(field: str, value: Any) -> None:
    (refused,) = find_unsupported(make_service({field: value}).spec)
    assert refused.field.startswith(f"spec.engine.{field}")


def test_no_field_is_forgotten() -> None:
    listed = {field for field, *_ in SETTINGS} | {field for field, _ in REFUSED}
    assert listed == {str(info.alias) for info in EngineSpec.model_fields.values()}


def test_what_is_left_out_is_the_engines_choice(started: list[Configs]) -> None:
    engine, server = configure(make_service({}), started)
    assert engine == EngineConfig(model="organisation/model", device="cpu")
    assert server == ServerConfig(host="127.0.0.1", port=8123, admin_port=9123, served_model_name="chat")
