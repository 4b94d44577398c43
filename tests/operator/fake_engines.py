"""Admin ports of engines for pods on fake nodes: each pod gets an address of this machine, and an engine behind it."""

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from pagefleet.api.capacity import CapacityReport, EnginePhase
from pagefleet.api.resources import PODS
from pagefleet.operator.plan.settings import ADMIN_PORT
from tests.operator.operator_process import Team

POLL_S = 0.3


@dataclass
class FakeEngine:
    """What the engine of one pod holds, and what it was asked; its pod is ready while it does not drain."""

    pod: str
    in_flight: int = 0
    is_draining: bool = False
    is_ready: bool = True
    """What its pod's kubelet was told."""
    asked: list[str] = field(default_factory=list)
    """Paths, each once in a row."""

    def answer(self, path: str) -> dict[str, Any]:
        """Answer a request to the admin port."""
        if not self.asked or self.asked[-1] != path:
            self.asked.append(path)
        if path == "/capacity":
            phase = EnginePhase.DRAINING if self.is_draining else EnginePhase.READY
            report = CapacityReport(phase=phase, draining=self.is_draining, in_flight=self.in_flight, blocks_cached=0)
            return report.model_dump(mode="json")
        self.is_draining = path == "/drain"
        return {"draining": self.is_draining, "in_flight": self.in_flight}


class FakeEngines:
    """An engine for every running pod of a namespace, by the pod's name."""

    def __init__(self, team: Team, network: str) -> None:
        """`network` is the first three numbers of loopback addresses that nobody else uses, such as 127.77.1."""
        self._team = team
        self._network = network
        self._servers: list[ThreadingHTTPServer] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._follow_pods)
        self.by_pod: dict[str, FakeEngine] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def _follow_pods(self) -> None:
        while not self._ends.wait(POLL_S):
            for pod in self._team.objects(PODS):
                name = pod["metadata"]["name"]
                if pod["status"].get("podIP") and name not in self.by_pod:
                    self._start(name)
            for engine in self.by_pod.values():
                if engine.is_ready is engine.is_draining:
                    self._probe(engine)

    def _probe(self, engine: FakeEngine) -> None:
        """Tell the fake kubelet what a readiness probe would find; the pod may be gone by then."""
        engine.is_ready = not engine.is_draining
        ready_after = "0s" if engine.is_ready else "9999h"
        annotate = ("annotate", "--overwrite", f"pod/{engine.pod}", f"fake/ready-after={ready_after}")
        self._team.cluster.kubectl("--namespace", self._team.namespace, *annotate, check=False)

    def _start(self, name: str) -> None:
        engine = FakeEngine(name)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(engine.answer(self.path)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815 - named by the library

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        address = f"{self._network}.{len(self._servers) + 1}"
        server = ThreadingHTTPServer((address, ADMIN_PORT), Handler)
        self._servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        status = json.dumps({"status": {"podIP": address, "podIPs": [{"ip": address}]}})
        self._team.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "--patch", status)
        self.by_pod[name] = engine
