"""The C library's malloc, told to stay small in the API process, and to let go of what loading left in the core."""

import ctypes

LARGE_BLOCK_BYTES = 2**20
MOST_ARENAS = 2
"""One for the event loop, one that all threads share."""

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
"""From glibc's malloc.h."""


def keep_heap_small() -> None:
    """Map blocks of a megabyte and more each on its own, and let threads share a heap.

    glibc otherwise raises its threshold to the largest block that was ever freed, up to 32 MiB: after one large body
    the next ones are part of the heap, which keeps twice as much free. And it gives every thread a heap, of which a
    long prompt's tokens leave 1.6 MiB. Does nothing with another C library.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
        mallopt(_M_ARENA_MAX, MOST_ARENAS)


def release_free_heap() -> None:
    """Give the system back what was freed.

    Weights that are converted on the way to their packed form leave holes in the heap, which glibc keeps: 450 MB for
    135M parameters in float32. Does nothing with another C library.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
