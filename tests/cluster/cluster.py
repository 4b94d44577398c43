"""A cluster as a test sees it."""

import json
import os
import secrets
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.paths import ClusterError

if TYPE_CHECKING:
    from tests.cluster.fake_nodes import FakeNodes
    from tests.cluster.local_cluster import LocalCluster

COMMAND_TIMEOUT_S = 300.0


class Cluster(ABC):
    """A cluster behind a kubeconfig: one that runs on this machine (`LocalCluster`), or one that was there before."""

    def __init__(self, kubeconfig: Path, *, programs: Path | None, scratch: Path, has_controllers: bool = True) -> None:
        self.kubeconfig = kubeconfig
        self.has_controllers = has_controllers
        self._programs = programs
        self._scratch = scratch
        self._reader: Any = None

    @property
    def environment(self) -> dict[str, str]:
        """Where kubectl, helm and other clients find the cluster and leave the user's files alone."""
        search_path = [*([str(self._programs)] if self._programs else []), os.environ.get("PATH", "")]
        return {
            **os.environ,
            "PATH": os.pathsep.join(search_path),
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(self._scratch / "kubectl"),
            "HELM_CACHE_HOME": str(self._scratch / "helm" / "cache"),
            "HELM_CONFIG_HOME": str(self._scratch / "helm" / "config"),
            "HELM_DATA_HOME": str(self._scratch / "helm" / "data"),
        }

    @property
    def host_address(self) -> str | None:
        """This machine's address as pods see it; None where that is not known."""
        return None

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - as subprocess calls it
        check: bool = True,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the cluster's administrator.

        Raises:
            ClusterError: it failed and `check` is set; with what it said.
        """
        return self._run("kubectl", arguments, input, check, timeout_s)

    def read(self, path: str) -> dict[str, Any]:
        """Return what the API server answers to a GET of its administrator.

        Raises:
            ClusterError: the answer is another than 200.
        """
        # Without kubectl, which takes a fifth of a second of CPU each time: tests read while they wait.
        from urllib3.exceptions import HTTPError  # here, since programs are built before anything is installed

        if self._reader is None:
            from kubernetes.config import new_client_from_config

            self._reader = new_client_from_config(str(self.kubeconfig))
        method, url, headers, *_ = self._reader.param_serialize(
            "GET", path, header_params={"Accept": "application/json"}, auth_settings=["BearerToken"]
        )
        try:
            answer = self._reader.call_api(method, url, headers, _request_timeout=COMMAND_TIMEOUT_S)
            body = answer.read()
        except HTTPError as error:
            raise ClusterError(f"GET {path}: {error}") from error
        if answer.status != 200:
            raise ClusterError(f"GET {path}: {answer.status} {body.decode(errors='replace')}")
        found: dict[str, Any] = json.loads(body)
        return found

    def helm(
        self, *arguments: str, check: bool = True, timeout_s: float = COMMAND_TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run helm as the cluster's administrator; where there is none, skip the test.

        Raises:
            ClusterError: it failed and `check` is set; with what it said.
        """
        if not shutil.which("helm", path=self.environment["PATH"]):
            pytest.skip("helm is missing: `python -m tests.cluster build` makes it")
        return self._run("helm", arguments, None, check, timeout_s)

    def start(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        """Start kubectl or another client in the background, as for `port-forward`; its output is one pipe."""
        return subprocess.Popen(
            [self._find(program), *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    @abstractmethod
    def audit_log(self) -> Path:
        """Who called what, one JSON event a line and a second late at most; the cluster itself and its administrator
        are left out.
        """

    @property
    @abstractmethod
    def local(self) -> "LocalCluster":
        """The cluster as one whose processes and nodes a test may break; others skip the test."""

    @abstractmethod
    def import_image(self, archive: Path) -> None:
        """Load an OCI archive on all nodes; pods name it with a tag other than `latest`, or never pull.

        Raises:
            ClusterError: there is no node, or the archive was refused.
        """

    @abstractmethod
    def fake_nodes(self, count: int, gpus: int = 8, *, prefix: str | None = None) -> "FakeNodes":
        """Add nodes without a kubelet and wait until they work.

        They stay until the cluster goes, or until `remove` or the end of a `with` block.
        """

    @contextmanager
    def namespace(self, prefix: str = "test", *, wait: bool = True) -> Iterator[str]:
        """Make a namespace and delete it afterwards; with `wait`, until all that was in it is gone."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        self.kubectl("create", "namespace", name)
        try:
            # Pods are refused before the namespace has its service account.
            here = f"--namespace={name}"
            if self.has_controllers:
                self.kubectl("wait", "--for=create", "--timeout=90s", "serviceaccount/default", here)
            else:
                self.kubectl("create", "serviceaccount", "default", here)
            yield name
        finally:
            wait = wait and self.has_controllers  # one of them empties it
            self.kubectl("delete", "namespace", name, "--ignore-not-found", f"--wait={str(wait).lower()}")

    def account_kubeconfig(self, namespace: str, account: str = "default") -> Path:
        """Write a kubeconfig whose user is a service account; what it does is in the audit log."""
        config = json.loads(self.kubectl("config", "view", "--raw", "--minify", "--output=json").stdout)
        token = self.kubectl("create", "token", account, f"--namespace={namespace}", "--duration=24h").stdout.strip()
        config["users"][0]["user"] = {"token": token}
        path = self._scratch / f"{namespace}-{account}.kubeconfig"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config))
        return path

    def _run(
        self, program: str, arguments: tuple[str, ...], text: str | None, check: bool, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        command = [self._find(program), *arguments]
        done = subprocess.run(
            command, input=text or "", env=self.environment, capture_output=True, text=True, timeout=timeout_s
        )
        if check and done.returncode:
            raise ClusterError(f"{program} {' '.join(arguments)}: {(done.stderr or done.stdout).strip()}")
        return done

    def _find(self, program: str) -> str:
        own = self._programs / program if self._programs else None
        return str(own) if own and own.exists() else program
