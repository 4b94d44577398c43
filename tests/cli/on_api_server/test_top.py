"""`pagefleet top` as people run it, against a real API server."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pagefleet.api.client import KubernetesClient
from pagefleet.api.resources import INFERENCE_SERVICES
from pagefleet.cli.main import run
from tests.cluster.cluster import Cluster

STATUS: dict[str, Any] = {
    "phase": "Ready",
    "readyReplicas": 2,
    "autoscaling": {
        "mode": "Active",
        "desired": 4,
        "reason": "Demand",
        "limitedBy": "upStep",
        "signals": {
            "kvPercent": 61,
            "queueDepth": 3,
            "requestsPerSecond": 6.5,
            "missedPercent": 0.4,
            "ageSeconds": 1.2,
        },
    },
}


async def make_service(client: KubernetesClient, namespace: str, name: str) -> None:
    metadata = {"name": name, "namespace": namespace}
    spec = {"model": {"uri": "hf://organisation/model"}, "replicas": 2}
    await client.create(INFERENCE_SERVICES, {"metadata": metadata, "spec": spec})
    body = {"metadata": metadata, "status": STATUS}
    await client.apply(INFERENCE_SERVICES, body, "test", subresource="status")


@pytest.fixture
async def namespace(crd_cluster: Cluster, client: KubernetesClient) -> AsyncIterator[str]:
    with crd_cluster.namespace("top", wait=False) as name:
        await make_service(client, name, "chat")
        yield name


def top(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pagefleet.cli", "top", *arguments]
    environment = {**os.environ, "COLUMNS": "160", **(environment or {})}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def start_on(terminal: int, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, env=environment, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    return process


async def test_a_table_of_the_cluster(crd_cluster: Cluster, namespace: str) -> None:
    shown = top("--namespace", namespace, environment={"KUBECONFIG": str(crd_cluster.kubeconfig)})
    assert (shown.returncode, shown.stderr) == (0, "")
    header, row = (line.split() for line in shown.stdout.splitlines()[:2])
    assert header[:4] == ["NAMESPACE", "NAME", "PHASE", "READY"]
    assert row == [namespace, "chat", "Ready", "2/2", "4", "61", "3", "6.5", "0.4", "1s", "Demand", "upStep"]
    everywhere = top("--once", "--kubeconfig", str(crd_cluster.kubeconfig))
    assert namespace in everywhere.stdout
    empty = top("--namespace", "none", "--kubeconfig", str(crd_cluster.kubeconfig))
    assert "No InferenceService in namespace none." in empty.stdout


async def test_the_table_of_a_terminal_follows_and_ends_by_ctrl_c(
    crd_cluster: Cluster, client: KubernetesClient, namespace: str
) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pagefleet.cli", "top", "--watch", "1", "--namespace", namespace]
    environment = {**os.environ, "KUBECONFIG": str(crd_cluster.kubeconfig), "COLUMNS": "160", "TERM": "xterm"}
    process = start_on(theirs, command, environment)
    os.set_blocking(ours, False)
    said = ""

    def wait_for(text: str) -> None:
        nonlocal said
        end_s = time.monotonic() + 60
        while text not in said:
            assert time.monotonic() < end_s, said
            try:
                said += os.read(ours, 65_536).decode()
            except BlockingIOError:
                time.sleep(0.05)

    try:
        wait_for("every 1 s")
        await make_service(client, namespace, "newcomer")
        wait_for("newcomer")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "is no file: write --kubeconfig FILE"),
        ("kind: Config", "No cluster: the kubeconfig"),
        (
            "{apiVersion: v1, kind: Config, current-context: a, users: [{name: a, user: {}}], "
            "contexts: [{name: a, context: {cluster: a, user: a}}], "
            "clusters: [{name: a, cluster: {server: 'http://127.0.0.1:9'}}]}",
            "The cluster does not answer: GET /apis/serving.pagefleet.io/v1alpha1/inferenceservices",
        ),
    ],
    ids=["no file", "no cluster in it", "nobody listens"],
)
def test_without_a_cluster_one_sentence_says_so(
    content: str | None, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kubeconfig"
    if content is not None:
        file.write_text(content)
    assert run(["top", "--kubeconfig", str(file)]) != 0
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_nowhere_to_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run(["top"]) == 2
    assert capsys.readouterr().err.startswith("No cluster: there is no ~/.kube/config")
    assert run(["top", "--watch", "0.2"]) == 2
    assert capsys.readouterr().err.startswith("--watch 0.2 is too often")
