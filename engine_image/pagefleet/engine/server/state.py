"""What the API process knows of itself: how far the start is, whether it drains, what is in flight."""

import asyncio
import os
import time

import msgspec

from pagefleet.api.capacity import CapacityReport, EnginePhase, MemoryReport
from pagefleet.engine import messages
from pagefleet.engine.config import EngineConfig, ServerConfig
from pagefleet.engine.core_client import CoreClient
from pagefleet.engine.messages import StartupProgress
from pagefleet.engine.metrics import EngineMetrics, package_version
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
        self.is_draining = False
        """New generation requests are refused."""
        self.is_stopping = False
        """The process ends once nothing is in flight; there is no way back."""
        self.requests_in_flight = 0
        """Generation requests from their first byte to the last byte of their answer."""
        self.request_ended = asyncio.Event()
        """Set whenever a generation request has been answered."""
        self.version = package_version("pagefleet")
        self._stage: StartupProgress | None = None
        self._stage_began_s = time.monotonic()

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

    def capacity(self) -> CapacityReport:
        """Return the `/capacity` message; what is not known is null."""
        phase, progress, detail = self.phase()
        report = CapacityReport(
            phase=phase,
            progress=progress,
            detail=detail,
            model=self.model_name,
            draining=self.is_draining,
            in_flight=self.requests_in_flight,
            startup_stage_seconds=dict(self.metrics.startup_stage_seconds),
            config_hash=self.engine.config_hash,
            engine_version=self.version,
            pod_uid=self.pod.pod_uid,
            monotonic_s=time.monotonic(),
        )
        known: dict[str, object] = {}
        if (ready := self.client.ready) is not None:
            known |= {
                "blocks_total": ready.blocks_total,
                "block_size": ready.block_size,
                "max_model_len": ready.max_model_len,
                "max_num_seqs": ready.max_num_seqs,
                "memory_bytes": ready.memory_limit_bytes,
                "weights_bytes": ready.weight_bytes,
                "kv_cache_bytes": ready.kv_cache_bytes,
                "memory": _memory_report(ready.memory),
                "config_hash": ready.config_hash,
                "prompt_tokens_total": self.metrics.prompt_tokens_total,
                "generation_tokens_total": self.metrics.generation_tokens_total,
                "step_time_s": self.metrics.mean_step_time_s,
            }
        if (state := self.client.state) is not None:
            known |= {
                "blocks_total": state.blocks_total,
                "blocks_active": state.blocks_active,
                "blocks_cached": state.blocks_cached,
                "blocks_free": state.blocks_free,
                "tokens_active": state.tokens_active,
                "tokens_queued": state.tokens_queued,
                "queue_depth": state.queue_depth,
                "queue_age_s": state.queue_age_s or 0.0,
                "running": state.running,
                "preemptions_total": state.preemptions_total,
                "prefix_query_tokens_total": state.prefix_query_tokens_total,
                "prefix_hit_tokens_total": state.prefix_hit_tokens_total,
            }
        return report.model_copy(update=known)


def _memory_report(memory: messages.MemoryReport | None) -> MemoryReport | None:
    if memory is None:
        return None
    return MemoryReport.model_validate({**msgspec.to_builtins(memory), "drift_ratio": memory.drift_ratio})


_STAGE_PHASES = {"import": EnginePhase.STARTING, "download": EnginePhase.DOWNLOADING}
_STAGE_TEXTS = {
    "import": "Starting the engine core",
    "download": "Downloading",
    "load": "Loading weights",
    "measure": "Measuring memory",
    "allocate": "Allocating the KV cache",
    "warm_up": "Warming up",
}
