"""A real API server for the client."""

from tests.support.crd_fixtures import client, crd_cluster

__all__ = ["client", "crd_cluster"]
