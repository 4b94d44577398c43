"""The operator killed at ten random moments of an apply, change, delete script: the end is always right."""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.operator.operator_process import OperatorProcess, Team, wait_for

SEED = 4
MOMENTS = 10
TOGETHER = 5
"""Namespaces with an operator each that play at once: most of the script is waiting."""
SCRIPT_S = 6.0
"""Time in which the script's steps fall; kills come in it too."""


@pytest.mark.timeout(600)
def test_ten_kills_change_no_end(noded_cluster: Cluster, tmp_path: Path, measured: Callable[[str], None]) -> None:
    moments = sorted(random.Random(SEED).uniform(0.3, SCRIPT_S) for _ in range(MOMENTS))

    def play(number: int) -> float:
        with noded_cluster.namespace("killed", wait=False) as namespace:
            return _play(Team(noded_cluster, namespace), tmp_path, f"run-{number}", moments[number])

    with ThreadPoolExecutor(TOGETHER) as pool:
        slowest_s = max(pool.map(play, range(MOMENTS)))
    measured(f"operator killed {MOMENTS} times: right end after {slowest_s:.1f} s at most")


def _play(team: Team, folder: Path, identity: str, moment_s: float) -> float:
    """Play the script, kill at the moment, start again; return how long the end took to come, in seconds."""
    steps: list[tuple[float, Callable[[], object]]] = [
        (0.5, lambda: team.apply(replicas=2)),
        (0.5, lambda: team.apply("other", replicas=1)),
        (2.5, lambda: team.apply(replicas=3, engine={"maxModelLen": 2048})),
        (4.0, lambda: team.kubectl("delete", "pf", "other", "--wait=false")),
        (4.5, lambda: team.kubectl("scale", "pf/chat", "--replicas=2")),
    ]
    process = OperatorProcess(team.cluster, team.namespace, folder, identity=identity)
    try:
        wait_for("it leads", lambda: process.is_leading)
        began_s = time.monotonic()
        is_killed = False
        for at_s, step in [*steps, (SCRIPT_S, lambda: None)]:
            if not is_killed and moment_s <= at_s:
                time.sleep(max(0.0, began_s + moment_s - time.monotonic()))
                process.kill()
                is_killed = True
                process = OperatorProcess(team.cluster, team.namespace, folder, identity=identity)
            time.sleep(max(0.0, began_s + at_s - time.monotonic()))
            step()
        began_s = time.monotonic()
        status = team.wait_ready(2)
        _check_end(team, status["revisions"]["current"])
        took_s = time.monotonic() - began_s
        team.kubectl("delete", "pf", "--all")
        wait_for("nothing is left", lambda: not team.objects())
        assert "Traceback" not in process.log, process.log
        return took_s
    finally:
        process.stop()


def _check_end(team: Team, revision: str) -> None:
    def is_right() -> bool:
        objects = team.objects()
        names = sorted((one["kind"], one["metadata"]["name"]) for one in objects if one["kind"] != "Pod")
        pods = [one for one in objects if one["kind"] == "Pod" and "deletionTimestamp" not in one["metadata"]]
        return (
            names
            == [
                ("ControllerRevision", f"chat-{revision}"),
                ("NetworkPolicy", "chat"),
                ("PodDisruptionBudget", "chat"),
                ("ReplicaSet", f"chat-{revision}"),
                ("Service", "chat"),
                ("ServiceAccount", "chat-engine"),
            ]
            and {one["metadata"]["labels"]["serving.pagefleet.io/revision"] for one in pods} == {revision}
            and len(pods) == 2
        )

    wait_for("exactly the objects of the last spec are left", is_right)
