"""The operator plans on a real API server, with the models of a small hub: refusals, fixes, and what it tells."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagefleet.api.resources import PODS
from tests.operator.operator_process import OperatorProcess, Team, wait_for
from tests.support import checkpoints
from tests.support.hub import Hub

pytestmark = pytest.mark.timeout(300)

MODELS = {
    "organisation/tiny": (256, 2048),
    "organisation/long": (256, 65_536),
    "organisation/wordy": (200_000, 2048),
}
"""Vocabulary and context."""
PENDING_REASONS = (None, "Planning")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folders = {}
    for name, (vocabulary, context) in MODELS.items():
        checkpoint = checkpoints.dense(
            layers=2,
            hidden=64,
            intermediate=128,
            heads=4,
            kv_heads=2,
            head_dim=16,
            vocabulary=vocabulary,
            context=context,
        )
        folders[name] = checkpoints.write_model(tmp_path_factory.mktemp("hub") / "model", checkpoint)
    with Hub(folders["organisation/tiny"], others=folders) as running:
        yield running


@pytest.fixture
def operator(team: Team, tmp_path: Path, hub: Hub) -> Iterator[OperatorProcess]:
    environment = {"PAGEFLEET_HUB": "on", "PAGEFLEET_HUB_ENDPOINT": hub.url}
    with OperatorProcess(team.cluster, team.namespace, tmp_path, **environment) as process:
        yield process
        if "Traceback" in process.log:
            pytest.fail(process.log)


def gpu(memory: str) -> dict[str, str]:
    return {"resource": "nvidia.com/gpu", "memory": memory}


def wait_plan(team: Team, name: str) -> dict[str, Any]:
    """Return the status of a service once it was judged."""

    def find() -> dict[str, Any] | None:
        status = team.status(name)
        return status if status.get("reason") not in PENDING_REASONS else None

    return wait_for(f"{name} is judged", find)


def wait_ready(team: Team, name: str) -> None:
    """Wait until a service is ready; say what its status is where that takes too long."""
    try:
        wait_for(f"{name} is ready", lambda: team.status(name).get("phase") == "Ready")
    except AssertionError as error:
        raise AssertionError(f"{error}; status: {team.status(name)}") from None


def test_what_does_not_fit_gets_no_pod_until_it_is_fixed(
    team: Team, operator: OperatorProcess, tmp_path: Path, hub: Hub
) -> None:
    team.apply(uri="hf://organisation/tiny", accelerator=gpu("512Mi"))
    status = wait_plan(team, "chat")
    assert (status["phase"], status["reason"]) == ("Failed", "DoesNotFit")
    assert "organisation/tiny does not fit" in status["message"]
    assert "Fix: " in status["message"]
    assert team.objects() == []
    columns = team.kubectl("get", "pf").split("\n")[1].split()
    assert columns[:3] == ["chat", "False", "DoesNotFit"]

    operator.kill()
    with OperatorProcess(team.cluster, team.namespace, tmp_path, identity="two") as blind:
        wait_for("it has looked at all", lambda: "first pass after" in blind.log)
        assert team.objects() == [], "a restart without a hub forgets no refusal"
        assert blind.writes() == 0

    with OperatorProcess(
        team.cluster, team.namespace, tmp_path, identity="three", PAGEFLEET_HUB="on", PAGEFLEET_HUB_ENDPOINT=hub.url
    ):
        team.apply(uri="hf://organisation/tiny", accelerator=gpu("2Gi"))
        ready = team.wait_ready()
        assert ready["plan"]["predicted"]["memoryBytes"] == 2 * 2**30
        team.apply(uri="hf://organisation/tiny", accelerator=gpu("512Mi"))
        refused = team.wait_status("a refused change", lambda one: one.get("reason") == "DoesNotFit")
        assert (refused["phase"], refused["readyReplicas"]) == ("Degraded", 1)
        assert len(team.objects(PODS)) == 1


def test_three_services_get_three_explained_configurations(team: Team, operator: OperatorProcess) -> None:
    """One is refused, and the fix that its status names makes it ready."""
    team.apply("small", "hf://organisation/tiny", accelerator=gpu("1Gi"))
    team.apply("long", "hf://organisation/long", accelerator=gpu("2Gi"), engine={"blockSize": 64})
    team.apply("wordy", "hf://organisation/wordy", accelerator=gpu("1Gi"))
    plans = {name: wait_plan(team, name)["plan"] for name in ("small", "long")}
    assert [plans[name]["maxModelLen"] for name in ("small", "long")] == [2048, 65_536]
    assert [plans[name]["blockSize"] for name in ("small", "long")] == [16, 64]
    assert "block-size 64: you set it" in " ".join(plans["long"]["why"])
    assert all(plans[name]["limit"] and len(plans[name]["why"]) >= 8 for name in plans)

    refused = wait_plan(team, "wordy")
    assert refused["reason"] == "DoesNotFit"
    fix = re.search(r"Fix: write under spec.engine maxNumSeqs: (\d+), maxNumBatchedTokens: (\d+);", refused["message"])
    assert fix is not None, refused["message"]
    engine = {"maxNumSeqs": int(fix[1]), "maxNumBatchedTokens": int(fix[2])}
    team.apply("wordy", "hf://organisation/wordy", accelerator=gpu("1Gi"), engine=engine)
    for name in ("small", "long", "wordy"):
        wait_ready(team, name)
    assert team.status("wordy")["plan"]["maxNumSeqs"] == engine["maxNumSeqs"]


def test_auto_chooses_what_makes_a_model_fit_and_keeps_it(
    team: Team, operator: OperatorProcess, tmp_path: Path, hub: Hub
) -> None:
    team.apply(uri="hf://organisation/wordy", accelerator=gpu("1Gi"), tuning={"mode": "Auto"})
    status = team.wait_ready()
    chosen = status["tuning"]["recommended"]["engine.maxNumSeqs"]
    (pod,) = team.objects(PODS)
    arguments = pod["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("--max-num-seqs") + 1] == chosen == str(status["plan"]["maxNumSeqs"])
    assert status["tuning"]["applied"] is True
    operator.kill()
    settings = {"PAGEFLEET_HUB": "on", "PAGEFLEET_HUB_ENDPOINT": hub.url, "PAGEFLEET_ENGINE_IMAGE": "example/engine:2"}
    with OperatorProcess(team.cluster, team.namespace, tmp_path, identity="two", **settings) as second:
        wait_for("it has looked at all", lambda: "first pass after" in second.log)
        team.wait_status("the image is told", lambda one: "TemplateDrift" in str(one["conditions"]))
        assert [one["metadata"]["uid"] for one in team.objects(PODS)] == [pod["metadata"]["uid"]]


def test_the_least_memory_and_what_was_measured_of_formats_are_told(team: Team, operator: OperatorProcess) -> None:
    uri = "hf://organisation/tiny"
    quality = {"model": uri, "results": [{"kvCache": "int8", "klNats": 0.001}, {"kvCache": "k4v3", "klNats": 0.3}]}
    allow = {"kvCache": ["auto", "int4", "k4v3"]}
    tuning = {"mode": "Auto", "objective": "memory", "allow": allow, "quality": quality}
    team.apply(uri=uri, accelerator=gpu("4Gi"), tuning=tuning)
    status = team.wait_ready(timeout_s=40)
    (pod,) = team.objects(PODS)
    arguments = pod["spec"]["containers"][0]["args"]
    share = arguments[arguments.index("--gpu-memory-utilization") + 1]
    assert float(share) == status["plan"]["gpuMemoryUtilization"] < 0.5
    assert status["tuning"]["recommended"]["engine.gpuMemoryUtilization"] == share
    assert status["plan"]["formats"] == [
        "weights none, KV cache bf16: plain, needs no quality gate",
        "weights none, KV cache int8: quality gate: passed, KL 0.001 of at most 0.03 nats",
        "weights none, KV cache int4: needs quality gate",
        "weights none, KV cache k4v3: quality gate: failed, KL 0.3 above 0.03 nats",
    ]


def test_a_model_that_the_hub_does_not_have_is_started_without_a_plan(team: Team, operator: OperatorProcess) -> None:
    team.apply(uri="hf://organisation/unknown")
    status = team.wait_ready()
    (accepted,) = [one for one in status["conditions"] if one["type"] == "PlanAccepted"]
    assert (accepted["status"], accepted["reason"]) == ("True", "NotPlanned")
    assert "organisation/unknown can't be read (the hub answers 404)" in accepted["message"]
