"""Fixtures: the CustomResourceDefinition on a real API server, and clients of it. A `conftest.py` imports them."""

from collections.abc import AsyncIterator

import pytest

from pagefleet.api.client import KubernetesClient
from pagefleet.api.client_connection import Connection
from pagefleet.api.crd import CRD_NAME, crd_yaml
from pagefleet.api.retry import RetrySettings
from tests.cluster.cluster import Cluster


@pytest.fixture(scope="session")
def crd_cluster(api_cluster: Cluster) -> Cluster:
    """A cluster that has the CustomResourceDefinition."""
    api_cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=crd_yaml())
    api_cluster.kubectl("wait", "--for=condition=Established", "--timeout=90s", f"crd/{CRD_NAME}")
    return api_cluster


@pytest.fixture
async def connection(crd_cluster: Cluster) -> AsyncIterator[Connection]:
    found = await Connection.open(str(crd_cluster.kubeconfig), "test", retry=RetrySettings(), timeout_s=30.0)
    yield found
    await found.close()


@pytest.fixture
async def client(crd_cluster: Cluster) -> AsyncIterator[KubernetesClient]:
    async with await KubernetesClient.connect(str(crd_cluster.kubeconfig), "test") as found:
        yield found
