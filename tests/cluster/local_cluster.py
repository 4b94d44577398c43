"""A cluster that runs on this machine: its files, its processes, its nodes, and faults in all of them."""

import contextlib
import os
import secrets
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from tests.cluster import control_plane, nodes, processes
from tests.cluster.build import Programs
from tests.cluster.cluster import Cluster
from tests.cluster.fake_nodes import FakeNodes
from tests.cluster.layout import NodeLayout
from tests.cluster.paths import ClusterError
from tests.cluster.records import Record

API_SERVER = "kube-apiserver"
READY_TIMEOUT_S = 180.0
"""A start takes 5 s; ten times that on a machine that is busy with something else."""

READ_TIMEOUT_S = 30.0

_POLL_S = 0.05
_LOG_TAIL_CHARACTERS = 1500


class LocalCluster(Cluster):
    """A cluster that this machine runs; `lifecycle` starts and removes it."""

    def __init__(self, record: Record, programs: Programs) -> None:
        super().__init__(
            record.folder / "pki" / "admin.kubeconfig",
            programs=programs.folder,
            scratch=record.folder / "scratch",
            has_controllers=programs.has("kube-controller-manager"),
        )
        self.record = record
        self.layout = record.layout
        self.folder = record.folder
        self.programs = programs

    @property
    def audit_log(self) -> Path:
        """The API server's audit log."""
        return self.folder / "audit.log"

    @property
    def local(self) -> Self:
        """This cluster."""
        return self

    @property
    def host_address(self) -> str:
        """This machine's address as pods see it."""
        return self.layout.host_address

    def log(self, title: str) -> str:
        """Return what a process of the control plane has written, such as `kube-apiserver`."""
        return (self.folder / "logs" / f"{title}.log").read_text(errors="replace")

    def get(self, path: str) -> bytes | None:
        """Return what the API server answers to a GET of its administrator; nothing unless it is 200."""
        try:
            with urllib.request.urlopen(self.layout.url + path, context=self._tls, timeout=2) as answer:
                body: bytes = answer.read()
                return body
        except OSError as error:
            if isinstance(error, urllib.request.HTTPError):
                error.close()
            return None

    def read(self, path: str) -> dict[str, Any]:
        """Return what `kubectl get --raw` does, without a process: that takes a hundred times as much CPU."""
        answer = self._http.get(path)
        if answer.status_code != httpx.codes.OK:
            raise ClusterError(f"GET {path}: {answer.text}")
        found: dict[str, Any] = answer.json()
        return found

    def close(self) -> None:
        """Close the connections that `read` keeps."""
        if "_http" in self.__dict__:
            self._http.close()

    def wait(self, what: str, condition: Callable[[], object], *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until a condition holds.

        Raises:
            ClusterError: it took too long.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                ends = "".join(f"\n{path.stem}: {_end(path)}" for path in sorted(self.folder.glob("logs/*.log")))
                raise ClusterError(f"{what}: not within {timeout_s:.0f} s; the ends of the logs:{ends}")
            time.sleep(_POLL_S)

    def start_api_server(self) -> None:
        """Start the API server and wait until it is ready.

        Raises:
            ClusterError: it ended, with the end of its log, or took too long.
        """
        arguments = control_plane.api_server_arguments(self.layout, self.folder)
        process_id = processes.start(self.folder, API_SERVER, [self.programs.path(API_SERVER), *arguments])

        def ready() -> bool:
            if processes.has_ended(process_id):
                raise ClusterError(f"{API_SERVER} ended: {_end(self.folder / 'logs' / f'{API_SERVER}.log')}")
            return self.get("/readyz") is not None

        self.wait("the API server is ready", ready)

    def stop_api_server(self) -> None:
        """Kill the API server."""
        processes.end(self.folder, API_SERVER)

    def restart_api_server(self) -> None:
        """Kill the API server, start it again and wait until it is ready."""
        self.stop_api_server()
        self.start_api_server()

    # -- nodes ------------------------------------------------------------

    def import_image(self, archive: Path, *, into: Sequence[NodeLayout] | None = None) -> None:
        """Load an OCI archive on all nodes, or on some.

        Pods name the image with a tag other than `latest`, or never pull.

        Raises:
            ClusterError: there is no node, or containerd refused the archive.
        """
        targets = self.layout.nodes if into is None else into
        if not targets:
            raise ClusterError("a cluster without nodes holds no images: use the fixture node_cluster")

        def load(node: NodeLayout) -> None:
            ctr = (str(self.programs.path("ctr")), "--namespace", "k8s.io")
            # Local, because containerd's transfer service takes three times as much CPU to receive an archive.
            command = nodes.command_in(node, self.folder, *ctr, "images", "import", "--local", str(archive.absolute()))
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise ClusterError(f"{archive} was not loaded on {node.name}: {done.stderr.strip()}")

        with ThreadPoolExecutor(len(targets)) as pool:
            list(pool.map(load, targets))

    def kill_node(self, node: NodeLayout) -> None:
        """End a node as a loss of power would. It does not come back."""
        processes.end(self.folder, nodes.node_title(node))

    def stop_kubelet(self, node: NodeLayout) -> None:
        """Stop a node's kubelet, with its pods running on."""
        (nodes.node_folder(self.folder, node) / "hold").touch()
        for process_id in processes.find(self.folder, nodes.node_title(node)):
            with contextlib.suppress(OSError):
                program = Path(f"/proc/{process_id}/cmdline").read_bytes().split(b"\0")[0]
                if program.endswith(b"/kubelet"):
                    os.kill(process_id, signal.SIGKILL)

    def start_kubelet(self, node: NodeLayout) -> None:
        """Start a stopped kubelet again."""
        (nodes.node_folder(self.folder, node) / "hold").unlink()

    def set_unhealthy_gpus(self, node: NodeLayout, numbers: Sequence[int]) -> None:
        """Choose which of a node's fake GPUs are broken; the kubelet hears of it within a second."""
        names = "".join(f"GPU-fake-{number}\n" for number in numbers)
        (nodes.node_folder(self.folder, node) / "unhealthy-gpus").write_text(names)

    def fake_nodes(self, count: int, gpus: int = 8, *, prefix: str | None = None) -> FakeNodes:
        """Add nodes without a kubelet and wait until they work."""
        if not self.programs.has("fake-nodes"):
            pytest.skip("KUBEBUILDER_ASSETS schedules nothing: `python -m tests.cluster build` makes the rest")
        return FakeNodes(self, prefix or f"fake-{secrets.token_hex(2)}-", count, gpus)

    @cached_property
    def _http(self) -> httpx.Client:
        """What `read` asks with: of a poll, the handshakes of new connections would be most."""
        return httpx.Client(base_url=self.layout.url, verify=self._tls, timeout=READ_TIMEOUT_S)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        pki = self.folder / "pki"
        context = ssl.create_default_context(cafile=pki / "ca.crt")
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        return context


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-_LOG_TAIL_CHARACTERS:].strip()
