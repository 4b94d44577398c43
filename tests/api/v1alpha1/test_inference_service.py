from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from pagefleet.api.v1alpha1 import (
    AutoscalingMode,
    BatchingMode,
    InferenceService,
    KvCacheDtype,
    ModelScheme,
    RolloutStrategy,
    SpeculativeMethod,
    TuningMode,
    WeightQuantization,
)

EVERYTHING = """
apiVersion: serving.pagefleet.io/v1alpha1
kind: InferenceService
metadata:
  name: chat
  namespace: team
  labels: {a: b}
  annotations: {c: d}
  uid: 1-2
  resourceVersion: "7"
  generation: 3
  creationTimestamp: "2026-01-01T00:00:00Z"
  ownerReferences: [{kind: Deployment, name: x}]
  managedFields: [{manager: kubectl}]
  finalizers: [example.com/x]
spec:
  model:
    uri: hf://HuggingFaceTB/SmolLM2-135M-Instruct
    name: smol
    tokenSecret: {name: hf-token, key: token}
  replicas: 2
  accelerator: {resource: nvidia.com/gpu, count: 2, memory: 80Gi}
  engine:
    blockSize: 32
    gpuMemoryUtilization: 0.90
    maxModelLen: 8192
    maxNumSeqs: 128
    maxNumBatchedTokens: 2048
    weights: {quantization: none}
    kvCache: {dtype: k4v3}
    prefixCaching: true
    batching: dynamic
    parallelism: {tensor: 2, pipeline: 1}
    speculative: {method: draft, tokens: 4, model: {uri: "file:///draft"}}
  tuning: {mode: Auto, objective: throughput, allow: {weights: [none, int8], kvCache: [auto, int8]}}
  autoscaling:
    mode: Active
    minReplicas: 1
    maxReplicas: 8
    slo: {ttft: 2s, itl: 100ms}
    targets: {kvOccupancy: 0.80, queueDepth: 4}
    scaleToZero: {idle: 10m}
  rollout: {strategy: Auto, progressDeadline: 15m}
  template: {metadata: {labels: {x: y}}, spec: {nodeSelector: {gpu: h100}}}
status:
  observedGeneration: 3
  phase: Updating
  reason: RollingOut
  message: 1 of 2
  url: http://chat.team.svc:8000/v1
  replicas: 2
  readyReplicas: 1
  selector: a=b
  conditions:
  - {type: Ready, status: "True", reason: Serving, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}
  revisions: {current: chat-1, updated: chat-2}
  plan:
    blockSize: 32
    gpuMemoryUtilization: 0.9
    predicted: {weightsBytes: 270000000, blocks: 100}
    measured: {weightsBytes: 270000001, blocks: 99}
    why: [blockSize 32 because you wrote it]
  tuning:
    recommended: {engine.blockSize: "16"}
    applied: false
  autoscaling:
    desired: 2
    reason: KvOccupancy
    limitedBy: maxReplicas
    signals: {kvOccupancy: 0.83, queueDepth: 2}
    lastDecisions:
    - {time: "2026-01-01T00:00:00Z", fromReplicas: 1, toReplicas: 2, reason: KvOccupancy}
"""


def service(**spec: Any) -> InferenceService:
    model = spec.pop("model", {"uri": "hf://a/b"})
    return InferenceService.from_manifest({"metadata": {"name": "chat"}, "spec": {"model": model, **spec}})


def includes(whole: Any, part: Any) -> bool:
    """Tell whether every value that was written is in the result, which may have defaults besides."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and includes(whole[key], part[key]) for key in part)
    return bool(whole == part)


def test_every_field_survives_a_round_trip() -> None:
    written = yaml.safe_load(EVERYTHING)
    read = InferenceService.from_manifest(written)
    assert includes(read.to_manifest(), written)
    assert InferenceService.from_manifest(read.to_manifest()) == read


def test_types_of_values() -> None:
    spec = InferenceService.from_manifest(yaml.safe_load(EVERYTHING)).spec
    assert spec.model.source.scheme is ModelScheme.HF
    assert spec.accelerator.memory == "80Gi"
    assert spec.accelerator.memory_bytes == 80 * 2**30
    assert spec.engine.weights.quantization is WeightQuantization.NONE
    assert spec.engine.kv_cache.dtype is KvCacheDtype.K4V3
    assert spec.engine.batching is BatchingMode.DYNAMIC
    assert spec.engine.speculative is not None
    assert spec.engine.speculative.method is SpeculativeMethod.DRAFT
    assert spec.autoscaling is not None
    assert spec.autoscaling.mode is AutoscalingMode.ACTIVE
    assert (spec.autoscaling.slo.ttft_s, spec.autoscaling.slo.itl_s) == (2.0, 0.1)
    assert spec.autoscaling.scale_to_zero is not None
    assert spec.autoscaling.scale_to_zero.idle_s == 600.0
    assert spec.rollout.progress_deadline_s == 900.0


def test_only_a_model_must_be_written() -> None:
    least = service()
    assert least.served_name == "chat"
    assert least.metadata.namespace == "default"
    assert least.spec.replicas == 1
    assert least.spec.accelerator.resource is None
    assert least.spec.accelerator.memory_bytes is None
    assert least.spec.engine.to_manifest() == {"weights": {}, "kvCache": {}, "parallelism": {}}
    assert least.spec.tuning.mode is TuningMode.RECOMMEND
    assert least.spec.autoscaling is None
    assert least.spec.rollout.strategy is RolloutStrategy.AUTO
    assert least.status.conditions == ()
    assert service(autoscaling={}).spec.autoscaling is not None
    slo = service(autoscaling={"slo": {}}).spec.autoscaling
    assert slo is not None
    assert (slo.slo.ttft_s, slo.slo.itl_s) == (None, None)


def test_served_name() -> None:
    assert service(model={"uri": "hf://a/b", "name": "org/other"}).served_name == "org/other"


def test_memory_may_be_a_plain_number_of_bytes() -> None:
    assert service(accelerator={"memory": 85899345920}).spec.accelerator.memory_bytes == 85899345920


@pytest.mark.parametrize(
    ("spec", "wrong", "works"),
    [
        ({"engine": {"maxNumSeqs": 64, "maxNumBatchedTokens": 32}}, "maxNumBatchedTokens is 32", "maxNumSeqs: 32"),
        ({"engine": {"blockSize": 32, "maxModelLen": 16}}, "blockSize is 32", "blockSize: 16"),
        ({"engine": {"speculative": {"method": "draft"}}}, "draft needs a model", "method: ngram"),
        (
            {"engine": {"speculative": {"method": "ngram", "model": {"uri": "hf://a/b"}}}},
            "'hf://a/b'",
            "method: draft",
        ),
        ({"accelerator": {"count": 2}}, "count is 2", "resource: nvidia.com/gpu"),
        ({"accelerator": {"memory": "80"}}, "memory is 80, less", "80Gi"),
        (
            {"accelerator": {"resource": "nvidia.com/gpu", "count": 2}, "engine": {"parallelism": {"tensor": 4}}},
            "needs 4 accelerators",
            "accelerator.count: 4",
        ),
        ({"autoscaling": {"minReplicas": 3, "maxReplicas": 2}}, "minReplicas is 3", "maxReplicas: 3"),
        ({"model": {"uri": "pvc://c/p", "tokenSecret": {"name": "x"}}}, "'pvc://c/p'", "remove tokenSecret"),
        ({"model": {"uri": "oci://r.io/m", "tokenSecret": {"name": "x"}}}, "'oci://r.io/m'", "imagePullSecrets"),
    ],
)
def test_fields_that_contradict_each_other(spec: dict[str, Any], wrong: str, works: str) -> None:
    with pytest.raises(ValidationError) as caught:
        service(**spec)
    (error,) = caught.value.errors()
    assert wrong in error["msg"]
    assert works in error["msg"]


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": -1},
        {"engine": {"blockSize": 0}},
        {"engine": {"gpuMemoryUtilization": 0}},
        {"engine": {"gpuMemoryUtilization": 1.01}},
        {"engine": {"speculative": {}}},
        {"accelerator": {"resource": "gpu"}},
        {"tuning": {"allow": {"weights": []}}},
        {"tuning": {"mode": False}},
        {"autoscaling": {"minReplicas": 0}},
        {"autoscaling": {"targets": {"kvOccupancy": 80}}},
        {"template": {"nodeSelector": {}}},
        {"model": {"uri": "hf://a/b", "name": "has space"}},
        {"unknown": 1},
    ],
)
def test_values_out_of_range(spec: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        service(**spec)


@pytest.mark.parametrize(
    ("name", "works"), [("Chat_1", "chat-1"), ("1st", "st"), ("", "chat"), ("-", "chat"), ("a" * 64, "63 or fewer")]
)
def test_wrong_name(name: str, works: str) -> None:
    with pytest.raises(ValidationError, match=works):
        InferenceService.from_manifest({"metadata": {"name": name}, "spec": {"model": {"uri": "hf://a/b"}}})


def test_longest_name() -> None:
    read = InferenceService.from_manifest({"metadata": {"name": "a" * 63}, "spec": {"model": {"uri": "hf://a/b"}}})
    assert read.served_name == "a" * 63
