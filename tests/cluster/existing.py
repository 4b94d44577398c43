"""A cluster that was there before: what it cannot do is skipped, with the reason."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.paths import ClusterError

KUBECONFIG_VARIABLE = "PAGEFLEET_TEST_KUBECONFIG"
IMPORT_VARIABLE = "PAGEFLEET_TEST_IMAGE_IMPORT"


class ExistingCluster(Cluster):
    """The cluster of `PAGEFLEET_TEST_KUBECONFIG`."""

    @property
    def audit_log(self) -> Path:
        """Skip."""
        _skip("its audit log cannot be read")

    @property
    def local(self) -> NoReturn:
        """Skip."""
        _skip("its processes and nodes are not broken by tests")

    def fake_nodes(self, count: int, gpus: int = 8, *, prefix: str | None = None) -> NoReturn:  # noqa: ARG002
        """Skip."""
        _skip("fake nodes are put into throw-away clusters only")

    def import_image(self, archive: Path) -> None:
        """Load an OCI archive by the command of `PAGEFLEET_TEST_IMAGE_IMPORT`, or skip.

        Raises:
            ClusterError: the command failed.
        """
        command = os.environ.get(IMPORT_VARIABLE)
        if not command:
            _skip(f"set {IMPORT_VARIABLE} to what loads an image archive, as in 'kind load image-archive'")
        done = subprocess.run([*shlex.split(command), str(archive)], capture_output=True, text=True)
        if done.returncode:
            raise ClusterError(f"{command} {archive}: {done.stderr.strip()}")


def _skip(reason: str) -> NoReturn:
    pytest.skip(f"the cluster of {KUBECONFIG_VARIABLE} is not ours: {reason}")
