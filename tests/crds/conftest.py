"""The CustomResourceDefinition on a real API server."""

from tests.support.crd_fixtures import client, connection, crd_cluster

__all__ = ["client", "connection", "crd_cluster"]
