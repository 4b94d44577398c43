"""The C library's malloc, told to give large blocks back: bodies of megabytes come and go in a process that stays."""

import ctypes

LARGE_BLOCK_BYTES = 2**20

_M_MMAP_THRESHOLD = -3
"""From glibc's malloc.h."""


def return_large_blocks() -> None:
    """Map blocks of a megabyte and more each on its own, so that freeing one returns its memory to the system.

    glibc otherwise raises this threshold to the largest block that was ever freed, up to 32 MiB: after one large body
    the next ones are part of the heap, which keeps twice as much free. Does nothing with another C library.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
