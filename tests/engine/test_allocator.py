"""`pagefleet.engine.allocator`: what it asks of glibc holds, and glibc does not do so by itself."""

import ctypes
import subprocess
import sys

import pytest

from tests.support.models import UNAVAILABLE

BEGIN = """
import ctypes, sys, threading
from pagefleet.engine.allocator import keep_heap_small

library = ctypes.CDLL(None)
if "small" in sys.argv:
    keep_heap_small()
"""
MAPPED_BYTES = """
class Usage(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

library.mallinfo2.restype = Usage
block = bytearray(8 * 2**20)
del block
before = library.mallinfo2().hblkhd
block = bytearray(8 * 2**20)
print(library.mallinfo2().hblkhd - before)
"""
ARENAS = """
together = threading.Barrier(6)

def allocate():
    together.wait()
    library.malloc(1000)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(together.parties)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
library.malloc_stats()
"""

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason=f"glibc 2.33 {UNAVAILABLE}")


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + program, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": "engine_image:crds"},
    )


def test_a_large_block_is_mapped_also_after_another_one() -> None:
    assert int(run(MAPPED_BYTES, "small").stdout) >= 8 * 2**20
    assert int(run(MAPPED_BYTES).stdout) < 2**20, "glibc does so by itself now: the setting can go"


def test_threads_share_a_heap() -> None:
    assert run(ARENAS, "small").stderr.count("Arena ") <= 2
    assert run(ARENAS).stderr.count("Arena ") > 2, "glibc does so by itself now: the setting can go"
