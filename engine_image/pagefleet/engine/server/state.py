"""What the API process knows of itself: how far the start is, whether it drains, what is in flight."""

import asyncio
import os
import time
from collections.abc import Callable

import msgspec

from pagefleet.api.capacity import EnginePhase
from pagefleet.engine.config import EngineConfig, ServerConfig
from pagefleet.engine.core_client import CoreClient
from pagefleet.engine.messages import StartupProgress
from pagefleet.engine.metrics import EngineMetrics, package_version
from pagefleet.engine.server.arrivals import Arrivals
from pagefleet.engine.server.serving import Serving


class PodSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What Kubernetes tells the process through its environment."""

    pod_uid: str | None = None
    """From `POD_UID`; None outside a cluster."""

    @classmethod
    def from_environment(cls) -> "PodSettings":
        """Read the environment, once per process."""
        return cls(pod_uid=os.environ.get("POD_UID") or None)


class ServerState:
    """Hold what both apps read. Only the lifecycle and the drain endpoints write."""

    def __init__(
        self,
        *,
        engine: EngineConfig,
        server: ServerConfig,
        pod: PodSettings,
        client: CoreClient,
        metrics: EngineMetrics,
    ) -> None:
        self.engine = engine
        self.server = server
        self.pod = pod
        self.client = client
        self.metrics = metrics
        self.serving: Serving | None = None
        """Set when the core has done a real forward pass and the tokenizer is loaded; never unset."""
        self.preparing = Arrivals()
        """Requests that were read and are not yet handed to the core."""
        self.is_draining = False
        """New generation requests are refused."""
        self.is_stopping = False
        """The process ends once nothing is in flight; there is no way back."""
        self.requests_in_flight = 0
        """Generation requests from their first byte to the last byte of their answer."""
        self.release_connections: Callable[[], object] = lambda: None
        """Close idle connections to the public port; set by who serves it."""
        self.request_ended = asyncio.Event()
        """Set whenever a generation request has been answered."""
        self.version = package_version("pagefleet")
        self._stage: StartupProgress | None = None
        self._stage_began_s = time.monotonic()

    def drain(self) -> None:
        """Refuse new generation requests, and send clients that keep connections to other replicas."""
        self.is_draining = True
        self.release_connections()

    def undrain(self) -> bool:
        """Take requests again; False after SIGTERM, when the process ends and would only lose them."""
        self.is_draining = self.is_stopping
        return not self.is_draining

    @property
    def model_name(self) -> str:
        """Return the name that requests use."""
        return self.server.served_model_name or self.engine.model

    @property
    def is_ready(self) -> bool:
        """Tell whether new requests are taken."""
        return self.serving is not None and not self.is_draining and self.client.failure is None

    @property
    def is_live(self) -> bool:
        """Tell whether the core lives and, if there is work, makes steps."""
        return self.client.failure is None and self.client.silent_s() < self.server.stall_timeout_s

    def enter_stage(self, progress: StartupProgress) -> tuple[str, float] | None:
        """Take the core's progress; return the stage that ended and its seconds when a new one began."""
        ended = None
        if self._stage is not None and self._stage.stage != progress.stage:
            now = time.monotonic()
            ended = (self._stage.stage, now - self._stage_began_s)
            self._stage_began_s = now
            self.metrics.startup_stage_seconds[ended[0]] = ended[1]
        self._stage = progress
        return ended

    def phase(self) -> tuple[EnginePhase, float | None, str | None]:
        """Return the phase, its progress from 0 to 1 if known, and a sentence for people."""
        if self.client.failure is not None:
            return EnginePhase.FAILED, None, str(self.client.failure)
        if self.serving is not None:
            return (EnginePhase.DRAINING if self.is_draining else EnginePhase.READY), None, None
        stage = self._stage
        if stage is None:
            return EnginePhase.STARTING, None, "Starting the engine core"
        phase = _STAGE_PHASES.get(stage.stage, EnginePhase.LOADING)
        text = _STAGE_TEXTS[stage.stage]
        if stage.fraction is not None:
            text = f"{text} {100 * stage.fraction:.0f} %"
        return phase, stage.fraction, text


_STAGE_PHASES = {"import": EnginePhase.STARTING, "download": EnginePhase.DOWNLOADING}
_STAGE_TEXTS = {
    "import": "Starting the engine core",
    "download": "Downloading",
    "load": "Loading weights",
    "measure": "Measuring memory",
    "allocate": "Allocating the KV cache",
    "warm_up": "Warming up",
}
