"""From an InferenceService to the engine's command line: one rendering for pods and for `pagefleet play`. Pure.

A knob that the user left out is left out here too: then the engine chooses. What the user asks for and the engine
cannot do is refused with a typed sentence, never dropped.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pagefleet.api.v1alpha1 import (
    InferenceService,
    InferenceServiceSpec,
    KvCacheDtype,
    ModelScheme,
    WeightQuantization,
)

DEFAULT_MEMORY_UTILIZATION = 0.9
"""What the engine takes when neither the user nor a shared machine says otherwise; equals the engine's own default."""

KV_CACHE_FLAGS = {
    KvCacheDtype.AUTO: "auto",
    KvCacheDtype.BF16: "bfloat16",
    KvCacheDtype.INT8: "int8",
    KvCacheDtype.INT4: "int4",
    KvCacheDtype.K4V3: "k4v3",
}
"""The KV-cache types that this engine has, with the flag's word for each."""

CUDA_RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class RefusedField:
    """Name a field whose value the engine cannot do, and a value that works."""

    field: str
    value: str
    why: str
    instead: str

    def __str__(self) -> str:
        return f"{self.field} is {self.value}, and {self.why}; {self.instead}."


class UnsupportedSpec(Exception):
    """Refuse a spec that is valid but that this engine cannot serve; `fields` lists every reason."""

    def __init__(self, fields: tuple[RefusedField, ...]) -> None:
        super().__init__(" ".join(map(str, fields)))
        self.fields = fields


def render_engine_arguments(
    service: InferenceService,
    *,
    model: str,
    host: str,
    port: int,
    admin_port: int,
    memory_share: float = 1.0,
    threads: int | None = None,
    names_device: bool = True,
) -> list[str]:
    """Return the arguments after `pagefleet`, from `engine serve` on; raises UnsupportedSpec.

    `model` is where this environment finds the weights: see `locate_model`. `memory_share` is this replica's part of
    the machine's memory, above 0 and up to 1: below 1 the utilization is written even if the user left it out.
    `threads` is its part of the cores; None, as in a pod, which has its own, lets the engine choose. Without
    `names_device` the device comes from the environment, where a pod's template can say another.
    """
    if refused := find_unsupported(service.spec):
        raise UnsupportedSpec(refused)
    engine = service.spec.engine
    utilization = engine.gpu_memory_utilization
    if memory_share < 1:
        utilization = round((utilization or DEFAULT_MEMORY_UTILIZATION) * memory_share, 4)
    knobs: list[tuple[str, object]] = [
        ("--host", host),
        ("--port", port),
        ("--admin-port", admin_port),
        ("--served-model-name", service.served_name),
        ("--revision", service.spec.model.source.revision),
        ("--device", engine_device(service.spec) if names_device else None),
        ("--block-size", engine.block_size),
        ("--gpu-memory-utilization", utilization),
        ("--batching", None if engine.batching is None else engine.batching.value),
        ("--max-model-len", engine.max_model_len),
        ("--max-num-seqs", engine.max_num_seqs),
        ("--max-num-batched-tokens", engine.max_num_batched_tokens),
        ("--threads", threads),
        ("--quantization", None if engine.weights.quantization is None else engine.weights.quantization.value),
        ("--kv-cache-dtype", None if engine.kv_cache.dtype is None else KV_CACHE_FLAGS[engine.kv_cache.dtype]),
    ]
    flags = [text for flag, value in knobs if value is not None for text in (flag, str(value))]
    if engine.prefix_caching is not None:
        flags.append("--enable-prefix-caching" if engine.prefix_caching else "--no-enable-prefix-caching")
    return ["engine", "serve", model, *flags]


def engine_device(spec: InferenceServiceSpec) -> str:
    """Return the engine's word for where the model runs."""
    return "cpu" if spec.accelerator.resource is None else "cuda"


def locate_model(service: InferenceService) -> str:
    """Return the engine's MODEL for a place that needs no volume: hub id, path or package; raises UnsupportedSpec.

    Claims and images are mounted by a cluster, so that they are refused here.
    """
    source = service.spec.model.source
    match source.scheme:
        case ModelScheme.HF | ModelScheme.FILE:
            return source.location
        case ModelScheme.PACKAGE:
            return f"package://{source.location}/{source.path}"
        case ModelScheme.PVC:
            why = "a volume claim can only be mounted by Kubernetes"
            instead = f"write file:///… with a folder of this machine, such as file:///models/{source.path or 'chat'}"
        case ModelScheme.OCI:
            why = "an image volume can only be mounted by Kubernetes"
            instead = "write hf://organisation/model, or file:///… with a folder of this machine"
    raise UnsupportedSpec((RefusedField("spec.model.uri", service.spec.model.uri, why, instead),))


def find_unsupported(spec: InferenceServiceSpec) -> tuple[RefusedField, ...]:
    """List every field of a valid spec that asks for what this engine cannot do."""
    return tuple(refused for check in _CHECKS if (refused := check(spec)) is not None)


def _weights(spec: InferenceServiceSpec) -> RefusedField | None:
    quantization = spec.engine.weights.quantization
    if quantization in (None, WeightQuantization.NONE):
        return None
    if quantization is WeightQuantization.SPARSE24:
        why, instead = "this engine has no such weights", "write none or int4, or int8 on a CPU"
    elif quantization is WeightQuantization.INT8 and spec.accelerator.resource is not None:
        why, instead = "this engine computes with 8-bit weights on a CPU alone", "write int4 or none"
    else:
        return None
    return RefusedField("spec.engine.weights.quantization", str(quantization), why, instead)


def _parallelism(spec: InferenceServiceSpec) -> RefusedField | None:
    for name, size in (("tensor", spec.engine.parallelism.tensor), ("pipeline", spec.engine.parallelism.pipeline)):
        if size is not None and size > 1:
            why = "this engine runs a replica on one accelerator"
            return RefusedField(f"spec.engine.parallelism.{name}", str(size), why, "write 1 or leave it out")
    return None


def _speculative(spec: InferenceServiceSpec) -> RefusedField | None:
    speculative = spec.engine.speculative
    if speculative is None:
        return None
    return RefusedField(
        "spec.engine.speculative.method",
        str(speculative.method),
        "this engine decodes one token at a time",
        "leave speculative out",
    )


def _accelerator(spec: InferenceServiceSpec) -> RefusedField | None:
    resource, count = spec.accelerator.resource, spec.accelerator.count
    if resource not in (None, CUDA_RESOURCE):
        why = "this engine runs on CUDA devices and CPUs"
        return RefusedField(
            "spec.accelerator.resource", str(resource), why, f"write {CUDA_RESOURCE}, or leave it out for the CPU"
        )
    if count > 1:
        why = "this engine runs a replica on one accelerator"
        return RefusedField("spec.accelerator.count", str(count), why, "write 1 and more replicas")
    return None


_CHECKS: tuple[Callable[[InferenceServiceSpec], RefusedField | None], ...] = (
    _weights,
    _parallelism,
    _speculative,
    _accelerator,
)
