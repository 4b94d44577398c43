"""A cluster with the operator installed, as a user sees it."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pagefleet.api.labels import SERVICE_LABEL
from pagefleet.api.resources import INFERENCE_SERVICES, PODS
from tests.cluster.cluster import Cluster
from tests.e2e.client_pod import ASK
from tests.images.build import BuiltImage

READY_TIMEOUT_S = 180


@dataclass(frozen=True)
class World:
    """The cluster with the operator installed, and a namespace of a user."""

    cluster: Cluster
    namespace: str
    engine: BuiltImage

    def kubectl(self, *arguments: str, **options: Any) -> str:
        """Run kubectl in the user's namespace and return its output."""
        return self.cluster.kubectl(f"--namespace={self.namespace}", *arguments, **options).stdout

    def service(self, name: str = "chat") -> dict[str, Any]:
        """Return an InferenceService."""
        return self.cluster.read(INFERENCE_SERVICES.path(self.namespace, name))

    def pods(self, name: str) -> list[dict[str, Any]]:
        """Return the pods of a service."""
        query = f"?labelSelector={SERVICE_LABEL}%3D{name}"
        found: list[dict[str, Any]] = self.cluster.read(PODS.path(self.namespace) + query)["items"]
        return found

    def ask(self, seconds: float, tokens: int = 16, *, service: str = "chat") -> dict[str, Any]:
        """Ask from the client's pod, through a service's Service, for the model `chat`."""
        url = self.service(service)["status"]["url"]
        output = self.kubectl(
            "exec", "client", "--", "python", "-c", ASK, url, str(seconds), str(tokens), timeout_s=300
        )
        answer: dict[str, Any] = json.loads(output.splitlines()[-1])
        return answer


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = READY_TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)
