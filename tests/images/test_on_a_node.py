"""A thin layer on a node: containerd takes it over an image it has, and it runs as restricted as pods are."""

import json
import time
from collections.abc import Callable

import pytest

from tests.cluster.cluster import Cluster
from tests.images.build import build_thin, why_not

SHOW = (
    "import os; open('/tmp/can-write', 'w').close(); "
    "print(os.getuid(), os.access('/', os.W_OK), os.access('/opt/app', os.W_OK))"
)


def pod(image: str) -> str:
    """Return a restricted pod that shows its version, its user, and where it can write."""
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", f'pagefleet --version && python -c "{SHOW}"'],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "shown"}, "spec": spec})


def test_code_comes_as_a_thin_layer(node_cluster: Cluster, measured: Callable[[str], None]) -> None:
    if reason := why_not():
        pytest.skip(reason)
    image = build_thin("operator")
    dependencies, code = image.archives
    node_cluster.import_image(dependencies)
    began_s = time.monotonic()
    assert build_thin("operator") == image
    node_cluster.import_image(code)
    megabytes = code.stat().st_size / 1e6
    measured(f"a change of code, to nodes as {megabytes:.1f} MB: {time.monotonic() - began_s:.1f} s")
    assert megabytes < 5
    with node_cluster.namespace("thin") as namespace:
        where = f"--namespace={namespace}"
        node_cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
        node_cluster.kubectl("apply", where, "-f", "-", input=pod(image.reference))
        node_cluster.kubectl("wait", where, "--for=jsonpath={.status.phase}=Succeeded", "pod/shown", "--timeout=90s")
        said = node_cluster.kubectl("logs", where, "shown").stdout.splitlines()
    assert said[0].startswith("pagefleet 0.")
    assert said[1] == "65532 False False"
