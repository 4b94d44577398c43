"""A real server of one's own, API process and core, on free ports of 127.0.0.1: for benchmarks and for tests."""

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec
import psutil

from pagefleet.engine.config import EngineConfig, ServerConfig
from pagefleet.engine.errors import StartupError

START_TIMEOUT_S = 120.0
POLL_S = 0.02
STOP_PATIENCE_S = 3.0

_SCRIPT = """
import logging, sys
import msgspec
from pagefleet.engine.config import EngineConfig, ServerConfig
from pagefleet.engine.server.lifecycle import run_and_exit
logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
engine, server = msgspec.json.decode(sys.argv[1], type=tuple[EngineConfig, ServerConfig])
run_and_exit(engine, server)
"""


def core_process_id(api_process_id: int) -> int:
    """Return the core's process id, by that of its API process; raises LookupError when there is none."""
    try:
        for child in psutil.Process(api_process_id).children():
            if any("core_process" in argument for argument in child.cmdline()):
                return child.pid
    except psutil.Error as error:
        raise LookupError(f"process {api_process_id} cannot be looked at: {error}") from error
    raise LookupError(f"process {api_process_id} has no engine core among its children")


class ServerProcess:
    """Start a server; leave it with SIGTERM, and with force when that is not enough."""

    script = _SCRIPT

    def __init__(self, engine: EngineConfig, server: ServerConfig, *, environment: Mapping[str, str]) -> None:
        configuration = msgspec.json.encode((engine, server)).decode()
        self.url = ""
        self.admin_url = ""
        # One client for all polls, because making one reads the certificate authorities: 40 ms of CPU time. It keeps no
        # connection, so a server that ends never closes one under a request.
        self.http = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))
        self._folder = tempfile.TemporaryDirectory(prefix="pagefleet-server-")
        self._log = Path(self._folder.name) / "log"  # a pipe would stop the server once it is full and nobody reads
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", self.script, configuration], env=environment, stderr=log
            )

    def wait_listening(self) -> Self:
        """Wait until both ports are bound; raises StartupError."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if found := re.search(r"public API on (\S+), admin on (\S+)", self.read_log()):
                self.url, self.admin_url = found.groups()
                return self
            if self.process.poll() is not None:
                raise StartupError(self._end())
            time.sleep(POLL_S)
        raise StartupError(f"the server did not listen within {START_TIMEOUT_S:g} s")

    def wait_ready(self) -> Self:
        """Wait until requests are taken; raises StartupError."""
        self.wait_listening()
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if self.process.poll() is not None:
                raise StartupError(self._end())
            with contextlib.suppress(httpx.HTTPError):
                if self.http.get(f"{self.admin_url}/readyz").is_success:
                    return self
            time.sleep(POLL_S)
        raise StartupError(f"the server was not ready within {START_TIMEOUT_S:g} s")

    def capacity(self) -> dict[str, Any]:
        """Return `/capacity`."""
        report: dict[str, Any] = self.http.get(f"{self.admin_url}/capacity").json()
        return report

    def core_process_id(self) -> int:
        """Return the core's process id."""
        return core_process_id(self.process.pid)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def wait_exit(self, timeout_s: float = 15.0) -> int:
        """Wait for the end and return the exit code; raises subprocess.TimeoutExpired."""
        return self.process.wait(timeout_s)

    def read_log(self) -> str:
        """Return what it has said so far."""
        return self._log.read_text(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stop in (self.terminate, self.terminate, self.process.kill):  # the second signal aborts what runs
            if self.process.poll() is None:
                stop()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(STOP_PATIENCE_S)
        self.http.close()
        self._folder.cleanup()

    def _end(self) -> str:
        code, lines = self.process.wait(), self.read_log().splitlines()
        return f"the server ended with {code}: {lines[-1] if lines else 'it said nothing'}"
