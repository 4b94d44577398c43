"""The CustomResourceDefinition on a real API server: what kubectl shows, scales and refuses."""

import json
from collections.abc import Iterator

import pytest

from pagefleet.api.client import KubernetesClient
from pagefleet.api.crd import CRD_NAME, crd_yaml
from pagefleet.api.labels import OPERATOR_FIELD_MANAGER
from pagefleet.api.resources import CUSTOM_RESOURCE_DEFINITIONS, INFERENCE_SERVICES
from tests.cluster.cluster import Cluster
from tests.crds.judge import manifest
from tests.crds.schema_walk import root_schema, walk

# A kind of the same name in the group of another project, with the field of ours that matters most under another name.
KSERVE_GROUP = "serving.kserve.io"
KSERVE_CRD = f"""
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: inferenceservices.{KSERVE_GROUP}}}
spec:
  group: {KSERVE_GROUP}
  scope: Namespaced
  names: {{plural: inferenceservices, singular: inferenceservice, kind: InferenceService, shortNames: [isvc]}}
  versions:
  - name: v1beta1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {{spec: {{type: object, properties: {{predictor: {{type: string}}}}}}}}
"""


@pytest.fixture
def namespace(crd_cluster: Cluster) -> Iterator[str]:
    with crd_cluster.namespace("crd", wait=False) as name:
        yield name


async def test_it_is_established(client: KubernetesClient) -> None:
    crd = await client.get(CUSTOM_RESOURCE_DEFINITIONS, None, CRD_NAME)
    assert crd is not None
    conditions = {condition["type"]: condition["status"] for condition in crd["status"]["conditions"]}
    assert conditions["Established"] == conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions


def test_defaults_are_filled_in(crd_cluster: Cluster, namespace: str) -> None:
    crd_cluster.kubectl("apply", "-f", "-", input=manifest("  autoscaling:\n    maxReplicas: 2", namespace=namespace))
    found = crd_cluster.kubectl("get", "pf", "chat", "-n", namespace, "-o", "json").stdout
    assert json.loads(found)["spec"] == {
        "model": {"uri": "hf://a/b"},
        "replicas": 1,
        "accelerator": {"count": 1},
        "engine": {"weights": {}, "kvCache": {}, "parallelism": {}},
        "tuning": {
            "mode": "Recommend",
            "objective": "throughput",
            "allow": {"weights": ["none"], "kvCache": ["auto"]},
        },
        "autoscaling": {
            "mode": "Active",
            "minReplicas": 1,
            "maxReplicas": 2,
            "slo": {},
            "targets": {"kvOccupancy": 0.8, "queueDepth": 4},
            "spareReplicas": 0,
            "schedule": [],
            "pauseScaleUp": False,
            "pauseScaleDown": False,
            "scaleDownWindow": "5m",
        },
        "rollout": {"strategy": "Auto", "progressDeadline": "15m"},
        "template": {},
    }


def test_what_apply_prints_for_a_mistake(crd_cluster: Cluster, namespace: str) -> None:
    text = manifest("  engine: {blockSize: 32, maxModelLen: 16}", uri="org/model", namespace=namespace)
    refused = crd_cluster.kubectl("apply", "-f", "-", input=text, check=False)
    assert refused.returncode == 1
    assert 'The InferenceService "chat" is invalid:' in refused.stderr
    assert "'org/model' has no scheme; write hf://org/model\n" in refused.stderr
    assert "blockSize is 32, more than maxModelLen 16; write blockSize: 16 or less" in refused.stderr


def test_unknown_fields_are_refused(crd_cluster: Cluster, namespace: str) -> None:
    text = manifest("  engine: {blokSize: 32}\n  engin: {}", namespace=namespace)
    refused = crd_cluster.kubectl("apply", "-f", "-", input=text, check=False)
    assert refused.returncode == 1
    assert 'strict decoding error: unknown field "spec.engin", unknown field "spec.engine.blokSize"' in refused.stderr
    asked = crd_cluster.kubectl("apply", "--validate=warn", "-f", "-", input=text)
    assert 'Warning: unknown field "spec.engin"' in asked.stderr


def test_unknown_fields_are_refused_by_server_side_apply(crd_cluster: Cluster, namespace: str) -> None:
    text = manifest("  engine: {blokSize: 32}", namespace=namespace)
    refused = crd_cluster.kubectl("apply", "--server-side", "-f", "-", input=text, check=False)
    assert refused.returncode == 1
    assert ".spec.engine.blokSize: field not declared in schema" in refused.stderr


def test_explain_has_every_field(crd_cluster: Cluster) -> None:
    explained = crd_cluster.kubectl("explain", "pf", "--recursive").stdout
    words = {word for line in explained.splitlines() for word in line.split()[:1]}
    fields = {path.rpartition(".")[2] for path, _ in walk(root_schema()) if path and not path.endswith(("]", "*"))}
    assert fields - words == set()


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("spec.engine.blockSize", "Tokens in one KV-cache block."),
        ("spec.engine.speculative.model.uri", "hf://organisation/model[@revision]"),
        ("spec.template", "The engine's container is named `engine`."),
        ("spec.accelerator.memory", "Memory of one accelerator, such as 80Gi."),
        ("spec.tuning.mode", "YAML reads a bare Off as false"),
        ("status.phase", "One word for people"),
        ("status.conditions.reason", "One CamelCase word"),
        ("status.plan.predicted.kvCacheBytes", "KV cache, in bytes."),
    ],
)
def test_explain(crd_cluster: Cluster, field: str, text: str) -> None:
    explained = " ".join(crd_cluster.kubectl("explain", f"pf.{field}").stdout.split())
    assert text in explained


async def test_columns(crd_cluster: Cluster, client: KubernetesClient, namespace: str) -> None:
    crd_cluster.kubectl("apply", "-f", "-", input=manifest(namespace=namespace))
    header, row = crd_cluster.kubectl("get", "pf", "-n", namespace).stdout.splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "REPLICAS", "KV%", "QUEUE", "MODEL", "URL", "AGE"]
    assert row.split()[:2] == ["chat", "hf://a/b"]  # what nobody observed stays empty
    status = {
        "reason": "Serving",
        "replicasText": "2/3",
        "url": "http://chat.team.svc:8000/v1",
        "autoscaling": {"signals": {"kvPercent": 0, "queueDepth": 12}},
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Serving", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        ],
    }
    body = {"metadata": {"name": "chat", "namespace": namespace}, "status": status}
    await client.apply(INFERENCE_SERVICES, body, OPERATOR_FIELD_MANAGER, subresource="status")
    row = crd_cluster.kubectl("get", "pf", "-n", namespace).stdout.splitlines()[1]
    assert row.split()[:8] == ["chat", "True", "Serving", "2/3", "0", "12", "hf://a/b", "http://chat.team.svc:8000/v1"]
    assert "inferenceservice.serving.pagefleet.io/chat" in crd_cluster.kubectl("get", "all", "-n", namespace).stdout
    wait = crd_cluster.kubectl("wait", "--for=condition=Ready", "pf/chat", "-n", namespace, "--timeout=90s")
    assert "condition met" in wait.stdout


async def test_conditions_of_two_writers_stay_apart(
    crd_cluster: Cluster, client: KubernetesClient, namespace: str
) -> None:
    crd_cluster.kubectl("apply", "-f", "-", input=manifest(namespace=namespace))
    for manager, kind in (("one", "Ready"), ("two", "AutoscalingActive")):
        condition = {"type": kind, "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        body = {"metadata": {"name": "chat", "namespace": namespace}, "status": {"conditions": [condition]}}
        found = await client.apply(INFERENCE_SERVICES, body, manager, subresource="status", force=False)
    assert [condition["type"] for condition in found["status"]["conditions"]] == ["Ready", "AutoscalingActive"]


async def test_scale(crd_cluster: Cluster, client: KubernetesClient, namespace: str) -> None:
    crd_cluster.kubectl("apply", "-f", "-", input=manifest(namespace=namespace))
    body = {"metadata": {"name": "chat", "namespace": namespace}, "status": {"replicas": 1, "selector": "a=b"}}
    await client.apply(INFERENCE_SERVICES, body, OPERATOR_FIELD_MANAGER, subresource="status")
    path = INFERENCE_SERVICES.path(namespace, "chat", "scale")
    scale = json.loads(crd_cluster.kubectl("get", "--raw", path).stdout)
    assert (scale["spec"], scale["status"]) == ({"replicas": 1}, {"replicas": 1, "selector": "a=b"})
    crd_cluster.kubectl("scale", "pf/chat", "--replicas=3", "-n", namespace)
    found = await client.get(INFERENCE_SERVICES, namespace, "chat")
    assert found is not None
    assert found["spec"]["replicas"] == 3
    patch = {"spec": {"replicas": 2}}
    await client.patch_merge(INFERENCE_SERVICES, namespace, "chat", patch, subresource="scale")
    refused = crd_cluster.kubectl("scale", "pf/chat", "--replicas=-1", "-n", namespace, check=False)
    assert refused.returncode == 1
    found = await client.get(INFERENCE_SERVICES, namespace, "chat")
    assert found is not None
    assert found["spec"]["replicas"] == 2


def test_beside_the_same_kind_of_another_group(crd_cluster: Cluster, namespace: str) -> None:
    theirs = f"inferenceservices.{KSERVE_GROUP}"
    crd_cluster.kubectl("apply", "-f", "-", input=KSERVE_CRD)
    try:
        crd_cluster.kubectl("wait", "--for=condition=Established", "--timeout=90s", f"crd/{theirs}")
        other = f"apiVersion: {KSERVE_GROUP}/v1beta1\nkind: InferenceService\nmetadata: {{name: chat}}\n"
        crd_cluster.kubectl("apply", "-n", namespace, "-f", "-", input=f"{other}spec: {{predictor: x}}\n")
        crd_cluster.kubectl("apply", "-f", "-", input=manifest(namespace=namespace))
        names = {
            asked: crd_cluster.kubectl("get", asked, "-n", namespace, "-o", "name").stdout.split()
            for asked in ("pf", "isvc", "inferenceservices", f"inferenceservices.{INFERENCE_SERVICES.group}", theirs)
        }
        ours_named, theirs_named = (
            f"inferenceservice.{group}/chat" for group in ("serving.pagefleet.io", KSERVE_GROUP)
        )
        assert names == {
            "pf": [ours_named],
            "isvc": [theirs_named],
            "inferenceservices": [theirs_named],  # the alphabetically first group, as it was before we came
            f"inferenceservices.{INFERENCE_SERVICES.group}": [ours_named],
            theirs: [theirs_named],
        }
    finally:
        crd_cluster.kubectl("delete", f"crd/{theirs}", "--wait")
    assert crd_cluster.kubectl("get", "pf", "-n", namespace, "-o", "name").stdout


def test_applying_it_again_changes_nothing(crd_cluster: Cluster) -> None:
    def version() -> str:
        return crd_cluster.kubectl("get", f"crd/{CRD_NAME}", "-o", "jsonpath={.metadata.resourceVersion}").stdout

    before = version()
    crd_cluster.kubectl("apply", "--server-side", "-f", "-", input=crd_yaml())
    assert version() == before
