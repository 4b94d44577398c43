"""Run a real engine, API process and core, for a test: `with EngineServer(model) as server: ...`."""

import os
import time
from pathlib import Path
from typing import Any

from pagefleet.engine.bench.server_process import ServerProcess
from pagefleet.engine.config import EngineConfig, ServerConfig

REPOSITORY = Path(__file__).parents[2]


class EngineServer(ServerProcess):
    """One engine process tree with a small cache and one thread."""

    def __init__(
        self,
        model: Path | str,
        *,
        engine: dict[str, Any] | None = None,
        server: dict[str, Any] | None = None,
        pod_uid: str = "pod-1234",
    ) -> None:
        engine_config = {
            "model": str(model),
            "dtype": "float32",
            "device": "cpu",
            "kv_cache_memory_bytes": 4 * 2**20,
            "threads": 1,
            **(engine or {}),
        }
        server_config = {
            "host": "127.0.0.1",
            "port": 0,
            "admin_port": 0,
            "served_model_name": "tiny",
            **(server or {}),
        }
        path = os.pathsep.join(str(REPOSITORY / part) for part in ("crds", "operator", "autoscaler", "engine_image"))
        super().__init__(
            EngineConfig(**engine_config),
            ServerConfig(**server_config),
            environment={**os.environ, "PYTHONPATH": path, "POD_UID": pod_uid},
        )

    def wait_capacity(self, timeout_s: float = 90.0, **expected: Any) -> dict[str, Any]:
        """Wait until `/capacity` holds these values and return it."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            report = self.capacity()
            if all(report[name] == value for name, value in expected.items()):
                return report
            time.sleep(0.01)
        raise AssertionError(f"/capacity never said {expected}: {report}")
