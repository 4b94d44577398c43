"""Pytest fixtures: a control plane and a cluster with nodes, started when the first test asks, removed at the end.

`tests/conftest.py` imports them. The hook builds the programs before the first test, where no test's time limit runs.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.cluster import lifecycle
from tests.cluster.build import ensure_programs, find_programs
from tests.cluster.cluster import Cluster
from tests.cluster.existing import KUBECONFIG_VARIABLE, ExistingCluster
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.paths import ClusterError
from tests.cluster.records import Owner
from tests.cluster.requirements import missing_for_api_tier, missing_for_node_tier

API_FIXTURE, NODE_FIXTURE = "api_cluster", "node_cluster"
NODES = 2
GPUS = 4
"""Of each node."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Clear what dead runs left, and build what the chosen tests need."""
    asked = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if not asked & {API_FIXTURE, NODE_FIXTURE} or session.config.option.collectonly:
        return
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    report = terminal.write_line if terminal else lifecycle.silent
    try:
        for name in lifecycle.clear_left_overs():
            report(f"removed the cluster {name} of a test run that is gone")
    except ClusterError as error:  # ours takes other networks and folders than one that does not go
        warnings.warn(pytest.PytestWarning(f"a cluster of a test run that is gone stays: {error}"), stacklevel=1)
    if KUBECONFIG_VARIABLE in os.environ:
        return
    if API_FIXTURE in asked and not missing_for_api_tier():
        ensure_programs(report)
    if NODE_FIXTURE in asked and not missing_for_node_tier():
        ensure_programs(report, nodes=True)


@pytest.fixture(scope="session")
def api_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """etcd, API server, controller manager and scheduler: about 4 s, no root. `fake_nodes` make pods run."""
    if existing := _existing(tmp_path_factory):
        yield existing
        return
    if reason := missing_for_api_tier():
        pytest.skip(reason)
    yield from _local(f"api-{os.getpid()}", nodes=0, gpus=0)


@pytest.fixture(scope="session")
def node_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A whole cluster: two nodes with four fake GPUs each: about 5 s, needs root."""
    if existing := _existing(tmp_path_factory):
        yield existing
        return
    if reason := missing_for_node_tier():
        pytest.skip(reason)
    yield from _local(f"nodes-{os.getpid()}", nodes=NODES, gpus=GPUS)


def _local(name: str, *, nodes: int, gpus: int) -> Iterator[LocalCluster]:
    programs = ensure_programs(lifecycle.silent, nodes=nodes > 0)
    cluster = lifecycle.up(name, programs, node_count=nodes, gpus=gpus, owner=Owner.this_process())
    try:
        with closing(cluster):
            yield cluster
    finally:
        lifecycle.down(cluster.record)


def _existing(tmp_path_factory: pytest.TempPathFactory) -> ExistingCluster | None:
    kubeconfig = os.environ.get(KUBECONFIG_VARIABLE)
    if not kubeconfig:
        return None
    programs = find_programs()
    return ExistingCluster(
        Path(kubeconfig), programs=programs.folder if programs else None, scratch=tmp_path_factory.mktemp("cluster")
    )
