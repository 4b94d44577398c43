"""One engine process: its own process group, its own log file, a pipe that ends it when `play` ends."""

import asyncio
import contextlib
import os
import random
import re
import signal
import socket
import sys
from collections.abc import Container, Sequence
from pathlib import Path

# Below the range of outgoing connections, so that a free port stays free until the engine binds it.
PORT_RANGE = range(20_000, 32_000)
LONGEST_REASON = 500
_LOG_PREFIX = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ [A-Z]+ ")
"""Time and level, which say nothing about why a process ended."""


class EngineProcess:
    """Own one running engine and its process group."""

    def __init__(self, process: asyncio.subprocess.Process, log_path: Path, log_start_bytes: int) -> None:
        self._process = process
        self._log_path = log_path
        self._log_start_bytes = log_start_bytes

    @classmethod
    async def start(cls, program: str, arguments: Sequence[str], log_path: Path) -> "EngineProcess":
        """Start `python PROGRAM ARGUMENTS…` (a module, or a file that ends in .py), logging to `log_path`."""
        with log_path.open("ab") as log:  # one log for all starts of a replica
            log_start_bytes = log.tell()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "pagefleet.cli.play.child",
                program,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal reaches `play` alone, which drains in order
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        return cls(process, log_path, log_start_bytes)

    @property
    def pid(self) -> int:
        """Return the process id, which is also the group's."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the end, clear what is left of the group, and return the exit code (negative: a signal)."""
        exit_code = await self._process.wait()
        self.kill()  # a worker whose parent crashed
        if self._process.stdin is not None:
            self._process.stdin.close()
        return exit_code

    def terminate(self) -> None:
        """Ask the engine to drain and end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """End the whole group now."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def last_line(self) -> str:
        """Return the last line that this process logged and that says anything; empty when there is none."""
        return last_line(self._log_path, self._log_start_bytes)


def last_line(log_path: Path, start_bytes: int = 0) -> str:
    """Return the last non-empty line after `start_bytes` without time and level, at most LONGEST_REASON characters."""
    try:
        with log_path.open("rb") as log:
            log.seek(max(start_bytes, log.seek(0, os.SEEK_END) - 16 * LONGEST_REASON))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return _LOG_PREFIX.sub("", lines[-1])[:LONGEST_REASON] if lines else ""


def free_ports(count: int, taken: Container[int]) -> list[int]:
    """Return ports of 127.0.0.1 that nobody uses and `taken` does not hold; raises OSError without any."""
    found: list[int] = []
    for port in random.sample(PORT_RANGE, len(PORT_RANGE)):
        if port in taken:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"no {count} free ports from {PORT_RANGE.start} to {PORT_RANGE.stop - 1}")
