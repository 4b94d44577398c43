"""What this machine gives a CPU replica: memory, as the cgroup or the machine allows, and bfloat16."""

import os
from pathlib import Path

CGROUP_MEMORY_FILES = (
    Path("/sys/fs/cgroup/memory.max"),  # version 2
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),  # version 1
)
CPU_INFO_FILE = Path("/proc/cpuinfo")
BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")


def memory_limit_bytes() -> int:
    """Return the bytes that a process here may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in CGROUP_MEMORY_FILES:
        try:
            return min(total, int(path.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return total


def has_fast_bfloat16() -> bool:
    """Tell whether this CPU multiplies bfloat16."""
    try:
        flags = CPU_INFO_FILE.read_text().split()
    except OSError:
        return False
    return any(flag in flags for flag in BFLOAT16_FLAGS)
