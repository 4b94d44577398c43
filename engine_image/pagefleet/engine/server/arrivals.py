"""Requests that were read and are not yet handed to the core: counted, so that a slow tokenizer hides none of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

HandOver = Callable[[], object]
"""Say that the core's client has the request, and counts it from here on."""


class Arrivals:
    """Hold when each of them came in."""

    def __init__(self) -> None:
        self._times_s: dict[object, float] = {}

    def __len__(self) -> int:
        return len(self._times_s)

    @property
    def oldest_s(self) -> float | None:
        """Return when the oldest came in, on the monotonic clock; None when there is none."""
        return min(self._times_s.values(), default=None)

    @contextmanager
    def one(self, arrival_s: float) -> Iterator[HandOver]:
        """Count one request until it is handed over, or given up."""
        key = object()
        self._times_s[key] = arrival_s
        try:
            yield lambda: self._times_s.pop(key, None)
        finally:
            self._times_s.pop(key, None)
