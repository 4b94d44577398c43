"""Run a real engine, API process and core, for a test: `with EngineServer(model) as server: ...`."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

REPOSITORY = Path(__file__).parents[2]
START_TIMEOUT_S = 120.0

_SCRIPT = """
import asyncio, json, logging, sys
from pagefleet.engine.config import EngineConfig, ServerConfig
from pagefleet.engine.server.lifecycle import serve
logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
engine, server = json.loads(sys.argv[1])
sys.exit(asyncio.run(serve(EngineConfig(**engine), ServerConfig(**server))))
"""


class EngineServer:
    """One engine process tree on free ports of 127.0.0.1, its log in memory."""

    def __init__(
        self, model: Path | str, *, engine: dict[str, Any] | None = None, server: dict[str, Any] | None = None
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
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, json.dumps([engine_config, server_config])],
            env={**os.environ, "PYTHONPATH": path, "POD_UID": "pod-1234"},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log = ""
        self.url = ""
        self.admin_url = ""

    def wait_listening(self) -> Self:
        """Wait until both ports are bound."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line
            if found := re.search(r"public API on (\S+), admin on (\S+)", line):
                self.url, self.admin_url = found.groups()
                return self
        raise AssertionError(f"the server ended with {self.process.wait()}: {self.log}")

    def wait_ready(self) -> Self:
        """Wait until requests are taken."""
        self.wait_listening()
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended: {self.read_log()}")
            if httpx.get(f"{self.admin_url}/readyz").status_code == 200:
                return self
            time.sleep(0.05)
        raise AssertionError("the server was not ready in time")

    def capacity(self) -> dict[str, Any]:
        """Return `/capacity`."""
        report: dict[str, Any] = httpx.get(f"{self.admin_url}/capacity").json()
        return report

    def wait_capacity(self, timeout_s: float = 30.0, **expected: Any) -> dict[str, Any]:
        """Wait until `/capacity` holds these values and return it."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            report = self.capacity()
            if all(report[name] == value for name, value in expected.items()):
                return report
            time.sleep(0.01)
        raise AssertionError(f"/capacity never said {expected}: {report}")

    def core_process_id(self) -> int:
        """Return the core's process id."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        commands = {int(child): Path(f"/proc/{child}/cmdline").read_text() for child in children}
        return next(number for number, command in commands.items() if "core_process" in command)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def wait_exit(self, timeout_s: float = 15.0) -> int:
        """Wait for the end and return the exit code."""
        return self.process.wait(timeout_s)

    def read_log(self) -> str:
        """Return the whole log; only after the end."""
        assert self.process.stderr is not None
        self.log += self.process.stderr.read()
        return self.log

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stop in (self.terminate, self.terminate, self.process.kill):  # the second signal aborts what runs
            if self.process.poll() is None:
                stop()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(3)
        assert self.process.stderr is not None
        self.process.stderr.close()
