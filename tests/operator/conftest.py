"""A namespace on a real API server with fake nodes, and the operator beside it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagefleet.api.resources import INFERENCE_SERVICES
from tests.cluster.cluster import Cluster
from tests.operator.operator_process import OperatorProcess, Team, wait_for
from tests.support.crd_fixtures import client, crd_cluster

__all__ = ["client", "crd_cluster"]

NODES, GPUS = 3, 2


@pytest.fixture(scope="session")
def noded_cluster(crd_cluster: Cluster) -> Iterator[Cluster]:
    """Nodes that seem to run pods, with six accelerators in all."""
    _wait_for_garbage_collector(crd_cluster)
    with crd_cluster.fake_nodes(NODES, GPUS, prefix="operator-"):
        yield crd_cluster


def _wait_for_garbage_collector(cluster: Cluster) -> None:
    """Wait until the garbage collector follows our kind: it looks for new ones every 30 s."""
    with cluster.namespace("collector", wait=False) as namespace:
        team = Team(cluster, namespace)
        team.apply("owner")
        owner = team.get(INFERENCE_SERVICES, "owner")
        reference = {key: owner[key] for key in ("apiVersion", "kind")}
        reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
        metadata = {"name": "owned", "ownerReferences": [reference]}
        owned = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        team.kubectl("apply", "-f", "-", text=json.dumps(owned))
        team.kubectl("delete", "pf", "owner")
        path = f"/api/v1/namespaces/{namespace}/configmaps?fieldSelector=metadata.name=owned"
        wait_for("it is collected", lambda: not cluster.read(path)["items"], 120, 0.5)


@pytest.fixture
def team(noded_cluster: Cluster) -> Iterator[Team]:
    with noded_cluster.namespace("operator", wait=False) as namespace:
        yield Team(noded_cluster, namespace)


@pytest.fixture
def operator(team: Team, tmp_path: Path) -> Iterator[OperatorProcess]:
    with OperatorProcess(team.cluster, team.namespace, tmp_path) as process:
        yield process
        if "Traceback" in process.log:
            pytest.fail(process.log)
