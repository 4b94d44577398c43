"""Kinds of other projects, for tests of what the operator and the chart do where a cluster has them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster


@pytest.fixture(scope="module")
def optional_kinds(api_cluster: Cluster) -> Iterator[None]:
    """Install them; only the API server of the cluster without nodes."""
    file = str(Path(__file__).parent / "optional_kinds.yaml")
    api_cluster.kubectl("apply", "-f", file)
    api_cluster.kubectl("wait", "--for=condition=Established", "-f", file, "--timeout=90s")
    yield
    api_cluster.kubectl("delete", "-f", file)
