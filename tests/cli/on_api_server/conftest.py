"""Fixtures of commands against a real API server."""

from tests.support.crd_fixtures import client, crd_cluster

__all__ = ["client", "crd_cluster"]
