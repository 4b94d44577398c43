"""`pagefleet.engine.allocator`: large blocks stay outside of the heap, however large those were that came before."""

import ctypes
import subprocess
import sys

import pytest

from tests.support.models import UNAVAILABLE

PROGRAM = """
import ctypes, sys
from pagefleet.engine.allocator import return_large_blocks

class Usage(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

library = ctypes.CDLL(None)
library.mallinfo2.restype = Usage
if "fixed" in sys.argv:
    return_large_blocks()
block = bytearray(8 * 2**20)
del block
before = library.mallinfo2().hblkhd
block = bytearray(8 * 2**20)
print(library.mallinfo2().hblkhd - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason=f"glibc 2.33 {UNAVAILABLE}")
def test_a_large_block_is_mapped_also_after_another_one() -> None:
    def mapped_bytes(*arguments: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            check=True,
            capture_output=True,
            text=True,
            env={"PYTHONPATH": "engine_image:crds"},
        )
        return int(done.stdout)

    assert mapped_bytes("fixed") >= 8 * 2**20
    assert mapped_bytes() < 2**20, "glibc does so by itself now: the module can go"
