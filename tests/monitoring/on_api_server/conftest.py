"""A watched fleet, once for all tests of a module: its load and its node are nothing for what comes after."""

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.monitoring.on_api_server.watched_fleet import WatchedFleet, watched_fleet
from tests.monitoring.prometheus_server import PrometheusServer
from tests.support.crd_fixtures import client, crd_cluster

__all__ = ["client", "crd_cluster"]


@pytest.fixture(scope="module")
def fleet(crd_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedFleet]:
    with watched_fleet(crd_cluster, tmp_path_factory.mktemp("watched")) as running:
        yield running


@pytest.fixture
def watched(fleet: WatchedFleet) -> PrometheusServer:
    return fleet.prometheus
