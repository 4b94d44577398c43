"""Scale-downs of the operator on a real API server: pods run on fake nodes, and fake engines answer for them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagefleet.api.resources import PODS, REPLICA_SETS
from tests.operator.fake_engines import FakeEngines
from tests.operator.operator_process import OperatorProcess, Team, wait_for

pytestmark = pytest.mark.timeout(300)

TRAFFIC, MARK = "serving.pagefleet.io/traffic", "serving.pagefleet.io/drain"


@pytest.fixture
def engines(team: Team) -> Iterator[FakeEngines]:
    with FakeEngines(team, f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250}") as running:
        yield running


def wait_loaded(team: Team, engines: FakeEngines, *in_flight: int) -> list[str]:
    """Wait until so many replicas run, give their engines these requests, and return the pods' names."""
    team.wait_ready(len(in_flight))
    wait_for("each pod has an engine", lambda: len(engines.by_pod) == len(in_flight))
    names = sorted(engines.by_pod)
    for name, count in zip(names, in_flight, strict=True):
        engines.by_pod[name].in_flight = count
    return names


def traffic(team: Team) -> dict[str, str]:
    pods = [one for one in team.objects(PODS) if "deletionTimestamp" not in one["metadata"]]
    return {one["metadata"]["name"]: one["metadata"]["labels"][TRAFFIC] for one in pods}


def marked(team: Team) -> list[str]:
    """Return the pods that drain, the one marked first in front."""
    pods = [one["metadata"] for one in team.objects(PODS)]
    marks = sorted((one["annotations"][MARK], one["name"]) for one in pods if MARK in one.get("annotations", {}))
    return [name for _, name in marks]


def wanted(team: Team) -> int:
    (replica_set,) = team.objects(REPLICA_SETS)
    return int(replica_set["spec"]["replicas"])


def drains(operator: OperatorProcess, outcome: str) -> bool:
    return f'pagefleet_operator_drains_total{{outcome="{outcome}"}} 1.0' in operator.get("/metrics")


def test_the_least_loaded_replica_leaves_when_it_is_empty_though_the_operator_is_killed(
    team: Team, engines: FakeEngines, tmp_path: Path
) -> None:
    with OperatorProcess(team.cluster, team.namespace, tmp_path) as first:
        team.apply(replicas=3)
        names = wait_loaded(team, engines, 5, 2, 4)
        victim = engines.by_pod[names[1]]
        team.kubectl("scale", "pf/chat", "--replicas=2")
        wait_for("the victim drains", lambda: victim.is_draining)
        assert traffic(team) == {names[0]: "on", names[1]: "off", names[2]: "on"}
        first.kill()
        with OperatorProcess(team.cluster, team.namespace, tmp_path) as second:
            wait_for("the second has looked", lambda: "first pass after" in second.log)
            status = team.wait_status(
                "a drain", lambda status: "2 requests in flight" in status["message"] and status["readyReplicas"] == 2
            )
            assert (status["phase"], status["reason"], wanted(team)) == ("Ready", "Draining", 3)
            replicas = 'pagefleet_operator_service_replicas{namespace="%s",service="chat",state="draining"} 1.0'
            assert replicas % team.namespace in second.get("/metrics")
            victim.in_flight = 0
            wait_for("only the victim leaves", lambda: traffic(team) == {names[0]: "on", names[2]: "on"})
            team.wait_ready(2)
            wait_for("it is counted", lambda: drains(second, "empty"))
            assert f"replica {victim.pod} leaves: nothing is in flight" in second.log
    assert all("/drain" not in one.asked for one in engines.by_pod.values() if one is not victim)


def test_a_drain_is_called_off_where_demand_returns(
    team: Team, engines: FakeEngines, operator: OperatorProcess
) -> None:
    team.apply(replicas=3)
    names = wait_loaded(team, engines, 1, 2, 3)
    team.kubectl("scale", "pf/chat", "--replicas=2")
    wait_for("the first drains", lambda: engines.by_pod[names[0]].is_draining)
    team.kubectl("scale", "pf/chat", "--replicas=1")
    wait_for("the second drains", lambda: engines.by_pod[names[1]].is_draining)
    assert marked(team) == names[:2]
    team.kubectl("scale", "pf/chat", "--replicas=2")
    wait_for("the one marked last is back", lambda: traffic(team)[names[1]] == "on")
    assert engines.by_pod[names[1]].asked[-2:] == ["/drain", "/undrain"]
    assert (marked(team), wanted(team)) == (names[:1], 3)
    wait_for("it is counted", lambda: drains(operator, "called_off"))
    engines.by_pod[names[0]].in_flight = 0
    wait_for("the other leaves", lambda: traffic(team) == {names[1]: "on", names[2]: "on"})
    team.wait_ready(2)
    team.kubectl("scale", "pf/chat", "--replicas=0")
    wait_for("both drain", lambda: all(engines.by_pod[name].is_draining for name in names[1:]))
    team.wait_status("a stop that waits", lambda status: status["message"].startswith("2 replicas drain: 5 requests"))
    for name in names[1:]:
        engines.by_pod[name].in_flight = 0
    team.wait_status("it is stopped", lambda status: status.get("phase") == "Stopped" and status["replicas"] == 0)
