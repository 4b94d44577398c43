"""`pagefleet autoscaler run`: a mistake gets one sentence, and nothing hangs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("environment", "code", "told"),
    [
        ({"PAGEFLEET_LEASE_DURATION": "soon"}, 2, "PAGEFLEET_LEASE_DURATION is 'soon', which is no whole number"),
        ({"PAGEFLEET_DECISION_LOG": "/no/such/folder/log"}, 1, "No such file or directory: '/no/such/folder/log'"),
        ({}, 1, "gives no access to a cluster"),
    ],
)
def test_a_start_that_fails_says_why(tmp_path: Path, environment: dict[str, str], code: int, told: str) -> None:
    command = [sys.executable, "-m", "pagefleet.cli", "autoscaler", "run", "--kubeconfig", str(tmp_path / "none")]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
