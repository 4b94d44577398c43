"""The operator on a real API server, scheduler and garbage collector; pods run on fake nodes."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagefleet.api.resources import (
    CONTROLLER_REVISIONS,
    INFERENCE_SERVICES,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    REPLICA_SETS,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from tests.operator.operator_process import KINDS, OperatorProcess, Team, wait_for

pytestmark = pytest.mark.timeout(300)

GPU = {"resource": "nvidia.com/gpu"}


def revisions(team: Team) -> set[str]:
    return {one["metadata"]["labels"]["serving.pagefleet.io/revision"] for one in team.objects(REPLICA_SETS)}


def test_an_applied_service_gets_its_objects_and_becomes_ready(team: Team, operator: OperatorProcess) -> None:
    team.apply(replicas=2)
    status = team.wait_ready(2)
    owner = team.get(INFERENCE_SERVICES)["metadata"]["uid"]
    objects = {one["kind"]: one for one in team.objects() if one["kind"] != "Pod"}
    assert set(objects) == {
        "ControllerRevision",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "ReplicaSet",
        "Service",
        "ServiceAccount",
    }
    for one in objects.values():
        (reference,) = one["metadata"]["ownerReferences"]
        assert (reference["uid"], reference["controller"]) == (owner, True)
    assert len(team.objects(PODS)) == 2
    assert status["readyReplicas"] == 2
    columns = team.kubectl("get", "pf").split("\n")
    assert columns[0].split()[:4] == ["NAME", "READY", "REASON", "REPLICAS"]
    assert columns[1].split()[:4] == ["chat", "True", "ReplicasAnswer", "2/2"]
    assert operator.get("/healthz") == "ok"


def test_a_changed_spec_takes_over_one_by_one_and_leaves_nothing_old(team: Team, operator: OperatorProcess) -> None:
    team.apply(replicas=2)
    before = team.wait_ready(2)["revisions"]["current"]
    slow = {"metadata": {"annotations": {"fake/ready-after": "1s"}}}
    team.apply(replicas=2, engine={"maxModelLen": 2048}, template=slow)
    most = least = 2

    def look() -> bool:
        nonlocal most, least
        pods = [one for one in team.objects(PODS) if "deletionTimestamp" not in one["metadata"]]
        ready = [
            one
            for one in pods
            for each in one["status"].get("conditions", ())
            if each["type"] == "Ready" and each["status"] == "True"
        ]
        most, least = max(most, len(pods)), min(least, len(ready))
        return team.status()["revisions"]["current"] not in (None, before)

    wait_for("the new revision is current", look)
    after = team.wait_ready(2)["revisions"]["current"]
    wait_for("the old revision is gone", lambda: revisions(team) == {after})
    wait_for("its template too", lambda: len(team.objects(CONTROLLER_REVISIONS)) == 1)
    assert (most, least) == (3, 2)


def test_scale_follows_kubectl_in_both_directions_and_to_zero(team: Team, operator: OperatorProcess) -> None:
    team.apply()
    team.wait_ready(1)
    for replicas in (3, 1):
        team.kubectl("scale", "pf/chat", f"--replicas={replicas}")
        team.wait_ready(replicas)
    team.kubectl("scale", "pf/chat", "--replicas=0")
    team.wait_status("it is stopped", lambda status: status.get("phase") == "Stopped" and status["replicas"] == 0)
    team.kubectl("scale", "pf/chat", "--replicas=1")
    team.wait_ready(1)


def test_a_shortage_is_told_with_its_number_and_ends_by_itself(
    team: Team, operator: OperatorProcess, measured: Callable[[str], None]
) -> None:
    wait_for("it leads", lambda: operator.is_leading)
    team.apply(replicas=8, accelerator=GPU)
    began_s = time.monotonic()
    team.wait_status("a shortage", lambda status: status.get("reason") == "InsufficientAccelerators")
    measured(f"shortage of accelerators in status after {time.monotonic() - began_s:.1f} s")
    told = "2 nvidia.com/gpu are missing: 2 of 8 replicas wait for a node"
    team.wait_status(
        "all that can run do", lambda status: status.get("readyReplicas") == 6 and told in (status.get("message") or "")
    )
    team.apply(replicas=6, accelerator=GPU)
    team.wait_ready(6)


def test_edits_by_hand_are_put_back_and_labels_of_others_stay(team: Team, operator: OperatorProcess) -> None:
    team.apply()
    revision = team.wait_ready()["revisions"]["current"]
    team.kubectl("label", "service/chat", "team=search")
    team.kubectl("annotate", "service/chat", "example.com/owner=me")
    for resource, patch in {
        "service/chat": {"spec": {"ports": [{"port": 8000, "name": "http", "targetPort": 1}]}},
        f"replicaset/chat-{revision}": {"spec": {"replicas": 3}},
        "poddisruptionbudget/chat": {"spec": {"maxUnavailable": 5}},
        "networkpolicy/chat": {"spec": {"ingress": []}},
    }.items():
        team.kubectl("patch", resource, "--type=merge", "--patch", json.dumps(patch))
    team.kubectl("label", "serviceaccount/chat-engine", "app.kubernetes.io/name-")
    team.kubectl("delete", "controllerrevision", "--all")

    def is_back() -> bool:
        service = team.get(SERVICES)
        return (
            service["spec"]["ports"][0]["targetPort"] == "http"
            and team.get(REPLICA_SETS, f"chat-{revision}")["spec"]["replicas"] == 1
            and team.get(POD_DISRUPTION_BUDGETS)["spec"]["maxUnavailable"] == 1
            and len(team.get(NETWORK_POLICIES)["spec"]["ingress"]) == 2
            and team.get(SERVICE_ACCOUNTS, "chat-engine")["metadata"]["labels"].get("app.kubernetes.io/name")
            == "pagefleet"
            and len(team.objects(CONTROLLER_REVISIONS)) == 1
        )

    wait_for("all of it is put back", is_back)
    metadata = team.get(SERVICES)["metadata"]
    assert metadata["labels"]["team"] == "search"
    assert metadata["annotations"]["example.com/owner"] == "me"
    team.wait_ready()

    def rests() -> bool:
        writes = operator.writes()
        time.sleep(3)
        return operator.writes() == writes

    wait_for("what others added is not written again and again", rests)


def test_a_deleted_service_leaves_nothing(team: Team, operator: OperatorProcess) -> None:
    for _ in range(3):
        team.apply(replicas=2)
        team.wait_ready(2)
        team.kubectl("delete", "pf", "chat")
        wait_for("nothing is left", lambda: not team.objects())
        time.sleep(2)
        assert team.objects() == []


def test_what_the_cluster_refuses_is_told_and_a_fixed_manifest_recovers(team: Team, operator: OperatorProcess) -> None:
    team.apply(template={"spec": {"containers": [{"name": "engine", "imagePull": "x"}]}})
    status = team.wait_status("a refusal", lambda status: status.get("reason") == "InvalidTemplate")
    assert "imagePull" in status["message"]
    assert status["phase"] == "Failed"
    team.apply(template={"spec": {"nodeSelector": {"disk": "none"}}})
    status = team.wait_status("no node fits", lambda status: status.get("reason") == "Unschedulable")
    team.apply()
    team.wait_ready()
    team.apply(engine={"weights": {"quantization": "sparse24"}})
    status = team.wait_status("a refused plan", lambda status: status.get("reason") == "Unsupported")
    assert (status["phase"], status["readyReplicas"]) == ("Degraded", 1)
    team.apply()
    team.wait_ready()


def test_a_namesake_of_somebody_else_is_not_taken_over(team: Team, operator: OperatorProcess) -> None:
    team.kubectl("create", "service", "clusterip", "chat", "--tcp=80:80")
    team.apply()
    status = team.wait_status("a refusal", lambda status: status.get("reason") == "ServiceRefused")
    assert "rename the service" in status["message"]
    assert team.get(SERVICES)["spec"]["ports"][0]["port"] == 80
    looks = _looks(operator)
    time.sleep(3)
    assert _looks(operator) - looks < 5, "what was refused for good is not tried again and again"
    team.kubectl("delete", "service", "chat")


def test_long_names_and_equal_served_names_work(team: Team, operator: OperatorProcess) -> None:
    for name in ("a" * 63, "a" * 62 + "b"):
        team.apply(name, model={"uri": "hf://organisation/model", "name": "same"})
    names = ("a" * 63, "a" * 62 + "b")
    wait_for("both are ready", lambda: all(team.status(name).get("phase") == "Ready" for name in names))


def test_nothing_is_written_at_rest_nor_after_a_restart(
    team: Team, operator: OperatorProcess, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    for name in ("chat", "other"):
        team.apply(name, replicas=2)
    team.wait_ready(2)
    wait_for("the other is ready", lambda: team.status("other").get("phase") == "Ready")
    time.sleep(1)
    writes, versions = operator.writes(), _versions(team)
    time.sleep(15)
    assert (operator.writes(), _versions(team)) == (writes, versions)
    assert operator.stop() == 0
    with OperatorProcess(team.cluster, team.namespace, tmp_path, identity="two") as second:
        wait_for("it has looked at all", lambda: "first pass after" in second.log)
        time.sleep(8)  # past its own sweep
        assert (second.writes(), _versions(team)) == (0, versions)
        memory = int((Path("/proc") / str(second.process_id) / "statm").read_text().split()[1]) * 4096
        measured(f"operator with 2 services: {memory / 2**20:.0f} MiB resident")


def _looks(operator: OperatorProcess) -> float:
    count = re.search(r"^pagefleet_operator_reconcile_seconds_count (\S+)$", operator.get("/metrics"), re.M)
    return float(count[1]) if count else 0.0


def _versions(team: Team) -> dict[str, Any]:
    items = [*team.objects(), *team.objects(INFERENCE_SERVICES, selector=None)]
    return {f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["resourceVersion"] for one in items}


def test_a_second_replica_takes_over(
    team: Team, operator: OperatorProcess, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    wait_for("the first leads", lambda: operator.is_leading)
    team.apply()
    team.wait_ready()
    with OperatorProcess(team.cluster, team.namespace, tmp_path, identity="two") as second:
        wait_for("the second waits", lambda: "health and metrics" in second.log)
        time.sleep(3)
        assert not second.is_leading
        operator.kill()
        began_s = time.monotonic()
        team.apply(replicas=2)
        team.wait_ready(2)
        measured(f"second operator carried on {time.monotonic() - began_s:.1f} s after the first was killed")
        with OperatorProcess(team.cluster, team.namespace, tmp_path, identity="three") as third:
            wait_for("the third waits", lambda: "health and metrics" in third.log)
            time.sleep(1)
            began_s = time.monotonic()
            assert second.stop() == 0
            wait_for("the third leads", lambda: third.is_leading, 10)  # an unreleased lead lasts longer
            measured(f"third operator led {time.monotonic() - began_s:.1f} s after the second was asked to stop")


def test_kinds_are_all_that_the_store_watches() -> None:
    from pagefleet.operator.store import CHILD_RESOURCES

    assert set(CHILD_RESOURCES) == set(KINDS)
