"""The real operator as a process of its own, against a real API server."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

from pagefleet.api.resources import (
    CONTROLLER_REVISIONS,
    INFERENCE_SERVICES,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    REPLICA_SETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Resource,
)
from tests.cluster.cluster import Cluster

Found = TypeVar("Found")
JsonObject = dict[str, Any]

PATIENCE_S = 90.0
"""How long anything may take on a machine that is busy with something else; what is well takes a tenth of it."""
KINDS = (
    REPLICA_SETS,
    SERVICES,
    POD_DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    SERVICE_ACCOUNTS,
    CONTROLLER_REVISIONS,
    PODS,
)
"""All kinds of objects that a service has."""


class OperatorProcess:
    """One operator for one namespace; killed at the end of a `with` block."""

    PROGRAM = "operator"

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, *, identity: str = "one", **env: str) -> None:
        self.identity = identity
        self._log = folder / f"{self.PROGRAM}-{identity}-{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "pagefleet.cli", self.PROGRAM, "run", "--namespace", namespace]
        environment = {
            **os.environ,
            "PAGEFLEET_NAMESPACE": namespace,
            "PAGEFLEET_POD_NAME": identity,
            "PAGEFLEET_ENGINE_IMAGE": "registry.example/engine:1",
            "PAGEFLEET_HTTP_PORT": "0",
            "PAGEFLEET_HUB": "off",
            "PAGEFLEET_ENDPOINT_DELAY": "1",  # there is no proxy to wait for
            **env,
        }
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, "--kubeconfig", str(cluster.kubeconfig)],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def log(self) -> str:
        """What it has said."""
        return self._log.read_text()

    @property
    def is_leading(self) -> bool:
        """Tell whether it has taken the lead."""
        return "leading as" in self.log

    @property
    def process_id(self) -> int:
        """Its process."""
        return self._process.pid

    def kill(self) -> None:
        """End it without a word (SIGKILL)."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Ask it to end (SIGTERM) and return its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=PATIENCE_S)

    @property
    def port(self) -> int:
        """Its HTTP port, once it listens."""
        return int(wait_for("its port is known", lambda: re.search(r"metrics on port (\d+)", self.log))[1])

    def get(self, path: str) -> str:
        """Ask its HTTP port."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    def writes(self) -> float:
        """Return how many objects it has written."""
        return sum(
            float(value)
            for value in re.findall(rf"^pagefleet_{self.PROGRAM}_writes_total\S* (\S+)$", self.get("/metrics"), re.M)
        )


def wait_for(what: str, find: Callable[[], Found | None], timeout_s: float = PATIENCE_S, pause_s: float = 0.1) -> Found:
    """Return what `find` finds, once it is true; fail with `what` and the last finding after a time."""
    end_s = time.monotonic() + timeout_s
    while True:
        found = find()
        if found:
            return found
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}; last: {found!r}")
        time.sleep(pause_s)


class Team:
    """A namespace as its users see it."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def apply(self, name: str = "chat", uri: str = "hf://organisation/model", **spec: Any) -> None:
        """Write an InferenceService as `kubectl apply` does."""
        manifest = {
            "apiVersion": "serving.pagefleet.io/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": name},
            "spec": {"model": {"uri": uri}, **spec},
        }
        self.kubectl("apply", "--server-side", "-f", "-", text=json.dumps(manifest))

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl in the namespace."""
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, input=text).stdout

    def objects(self, *kinds: Resource, selector: str | None = "serving.pagefleet.io/service") -> list[JsonObject]:
        """Return the objects of some kinds that belong to services, of all kinds where none is named."""
        query = f"?labelSelector={quote(selector)}" if selector else ""
        found = []
        for kind in kinds or KINDS:
            items = self.cluster.read(kind.path(self.namespace) + query)["items"]
            found += [{**one, "apiVersion": kind.api_version, "kind": kind.kind} for one in items]
        return found

    def get(self, kind: Resource, name: str = "chat") -> JsonObject:
        """Return one object."""
        return self.cluster.read(kind.path(self.namespace, name))

    def status(self, name: str = "chat") -> JsonObject:
        """Return a service's status."""
        found: JsonObject = self.get(INFERENCE_SERVICES, name).get("status") or {}
        return found

    def wait_status(self, what: str, holds: Callable[[JsonObject], bool], timeout_s: float = PATIENCE_S) -> JsonObject:
        """Wait for a status of the service `chat`."""

        def find() -> JsonObject | None:
            status = self.status()
            return status if holds(status) else None

        try:
            return wait_for(what, find, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; status: {json.dumps(self.status())}") from None

    def wait_ready(self, replicas: int = 1, timeout_s: float = PATIENCE_S) -> JsonObject:
        """Wait until the present spec is wholly ready."""
        generation = self.get(INFERENCE_SERVICES)["metadata"]["generation"]
        return self.wait_status(
            f"{replicas} replicas are ready",
            lambda status: (
                status.get("phase") == "Ready"
                and status.get("observedGeneration") == generation
                and status.get("replicasText") == f"{replicas}/{replicas}"
                and status["revisions"].get("current") == status["revisions"].get("updated")
            ),
            timeout_s,
        )
