"""Nodes are real: they run our own images, ask probes, hand out fake GPUs and refuse what they have not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.build import WEB_IMAGE, ensure_programs
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures import GPUS
from tests.cluster.images import write_image
from tests.cluster.lifecycle import silent

READY_AFTER_S = 1.5


@pytest.fixture(scope="module")
def web_cluster(node_cluster: Cluster) -> Cluster:
    """The cluster, with the web server's image on its nodes."""
    node_cluster.import_image(ensure_programs(silent, nodes=True).path("web.tar"))
    return node_cluster


@pytest.fixture
def namespace(web_cluster: Cluster) -> Iterator[str]:
    with web_cluster.namespace(wait=False) as name:  # no test needs GPUs that another one may hold still
        yield name


def web_pod(gpus: int) -> dict[str, Any]:
    container = {
        "name": "web",
        "image": WEB_IMAGE,
        "args": [f"-ready-after={READY_AFTER_S}s"],
        "ports": [{"containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1},
        "resources": {"limits": {"nvidia.com/gpu": gpus}},
    }
    return {"containers": [container], "terminationGracePeriodSeconds": 5}


def web_objects(replicas: int, gpus: int) -> str:
    labels = {"app": "web"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": web_pod(gpus)},
        },
    }
    ports = [{"port": 80, "targetPort": 8080}]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": labels, "ports": ports},
    }
    return yaml.safe_dump_all([deployment, service])


def test_pods_get_gpus_and_answer_by_the_services_name(web_cluster: Cluster, namespace: str) -> None:
    here = f"--namespace={namespace}"
    web_cluster.kubectl("apply", "--filename=-", here, input=web_objects(replicas=2, gpus=GPUS))
    web_cluster.kubectl("rollout", "status", "deployment/web", "--timeout=90s", here)
    pods = web_cluster.kubectl("get", "pods", "--output=name", here).stdout.split()
    answers = {web_cluster.kubectl("exec", pods[0], here, "--", "/web", "get", "http://web/").stdout for _ in range(20)}
    devices = {answer.split()[1].count("GPU-fake-") for answer in answers}
    assert devices == {GPUS}
    assert len(answers) == len(pods)


def test_gpus_that_are_not_there_are_refused(web_cluster: Cluster, namespace: str) -> None:
    here = f"--namespace={namespace}"
    web_cluster.kubectl("apply", "--filename=-", here, input=web_objects(replicas=1, gpus=GPUS + 1))
    refusal = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}"
    web_cluster.kubectl("wait", "--for=create", "pods", "--selector=app=web", "--timeout=90s", here)
    web_cluster.kubectl("wait", "--for=condition=PodScheduled=false", "pods", "--all", "--timeout=90s", here)
    message = web_cluster.kubectl("get", "pods", here, f"--output=jsonpath={{.items[0]{refusal[10:]}").stdout
    assert "Insufficient nvidia.com/gpu" in message


def test_broken_gpus_are_taken_out(web_cluster: Cluster) -> None:
    node = web_cluster.local.layout.nodes[0]

    def wait_allocatable(count: int) -> None:
        condition = f"jsonpath={{.status.allocatable.nvidia\\.com/gpu}}={count}"
        web_cluster.kubectl("wait", f"--for={condition}", f"node/{node.name}", "--timeout=90s")

    web_cluster.local.set_unhealthy_gpus(node, [0, 2])
    try:
        wait_allocatable(GPUS - 2)
    finally:
        web_cluster.local.set_unhealthy_gpus(node, [])
    wait_allocatable(GPUS)


def test_images_are_mounted_as_volumes(web_cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """As the model of an `oci://` source is."""
    weights = tmp_path / "weights"
    weights.write_text("as trained")
    image = "localhost/model:1"
    web_cluster.import_image(write_image(tmp_path / "model.tar", image, files={"/models/weights": weights}))
    here = f"--namespace={namespace}"
    spec = web_pod(gpus=0)
    spec["volumes"] = [{"name": "model", "image": {"reference": image, "pullPolicy": "Never"}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "model", "mountPath": "/model", "readOnly": True}]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec}
    web_cluster.kubectl("apply", "--filename=-", here, input=yaml.safe_dump(pod))
    web_cluster.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=90s", here)
    url = "http://127.0.0.1:8080/files/model/models/weights"
    assert web_cluster.kubectl("exec", "web", here, "--", "/web", "get", url).stdout == "as trained"


def test_pods_end_when_told(web_cluster: Cluster, namespace: str) -> None:
    here = f"--namespace={namespace}"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": web_pod(gpus=0)}
    web_cluster.kubectl("apply", "--filename=-", here, input=yaml.safe_dump(pod))
    web_cluster.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=90s", here)
    log = web_cluster.start("kubectl", "logs", "web", "--follow", here)
    assert log.stdout is not None
    assert "serving" in log.stdout.readline()  # it follows by now
    web_cluster.kubectl("delete", "pod", "web", here)
    assert "told to stop" in log.communicate(timeout=30)[0]
