"""What this process may use: memory and cores, as the cgroup or the machine allows."""

import math
import os
from pathlib import Path

import psutil

CGROUP_MEMORY_FILES = (
    Path("/sys/fs/cgroup/memory.max"),  # version 2
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),  # version 1
)
PEAK_RESET_FILE = Path("/proc/self/clear_refs")
"""What writes 5 there sets the peak of resident memory to its present (proc(5))."""
CGROUP_CPU_FILE = Path("/sys/fs/cgroup/cpu.max")
STATUS_FILE = Path("/proc/self/status")
LIBRARY_BYTES = 144 * 2**20
"""Resident code of Python, torch and their libraries, at the most that was seen."""


def memory_limit_bytes() -> int:
    """Return the bytes that this process may use: the cgroup's limit or the machine's memory."""
    total = int(psutil.virtual_memory().total)
    for path in CGROUP_MEMORY_FILES:
        limit = _read_number(path)
        if limit is not None:
            return min(total, int(limit))
    return total


def memory_available_bytes() -> int:
    """Return the bytes that the machine can still give without swapping."""
    return int(psutil.virtual_memory().available)


def memory_used_bytes() -> int:
    """Return this process's resident bytes."""
    return int(psutil.Process().memory_info().rss)


def memory_held_bytes() -> int:
    """Return what this process holds: all that cannot be dropped, and `LIBRARY_BYTES` for the code that it runs.

    How many pages of libraries are resident depends on the page cache (100 MiB, or 150 after an installation), and the
    system drops them where memory is short.
    """
    files = mapped_file_bytes()
    return memory_used_bytes() if files is None else memory_used_bytes() - files + LIBRARY_BYTES


def mapped_file_bytes() -> int | None:
    """Return the resident bytes of mapped files, or None where the kernel does not tell."""
    return _status_bytes("RssFile")


def _status_bytes(name: str) -> int | None:
    """Return a line of proc(5)'s status; sandboxes that imitate Linux lack some."""
    try:
        lines = STATUS_FILE.read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)


class PeakMemory:
    """Know the most resident bytes of this process since `reset`, where the kernel tells (Linux)."""

    def reset(self) -> bool:
        """Forget what was before; tells whether that is possible here."""
        try:
            PEAK_RESET_FILE.write_text("5")
        except OSError:  # another system, or one that hides /proc
            return False
        return _status_bytes("VmHWM") is not None

    def bytes(self) -> int:
        """Return the bytes."""
        return _status_bytes("VmHWM") or 0


class ResidentMemory:
    """Know this process's resident bytes as they were at most a second ago: a step is shorter than a few questions."""

    def __init__(self) -> None:
        self._bytes = 0
        self._known_until_s = -math.inf

    def bytes_at(self, now_s: float) -> int:
        """Return the bytes; `now_s` is monotonic."""
        if now_s >= self._known_until_s:
            self._bytes = memory_used_bytes()
            self._known_until_s = now_s + 1
        return self._bytes


def usable_cores() -> int:
    """Return the cores that affinity and the cgroup's quota leave to this process, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = CGROUP_CPU_FILE.read_text().split()
        cores = min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        pass
    return max(1, cores)


def _read_number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None
