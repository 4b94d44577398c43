"""Knative's pod autoscaler: requests in flight over a stable and a panic window."""

import math
from collections import deque

from pagefleet.autoscaler.snapshot import Snapshot

STABLE_S, PANIC_S = 60.0, 6.0
PANIC_THRESHOLD = 2.0
MOST_DOWN, MOST_UP = 2.0, 1000.0


class Kpa:
    """Scale by the mean number of requests in flight over the target of one replica."""

    interval_s = 2.0

    def __init__(self, target: float) -> None:
        self._target = target
        self._seen: deque[tuple[float, float]] = deque()
        self._panic_until_s: float | None = None
        self._most = 0

    def desired(self, snapshot: Snapshot) -> int:
        """Return the number of replicas that should exist."""
        now_s, ready = snapshot.time_s, max(1, len(snapshot.ready))
        total = snapshot.held_requests + sum(
            replica.reading.in_flight for replica in snapshot.replicas if replica.reading is not None
        )
        self._seen.append((now_s, float(total)))
        while self._seen[0][0] <= now_s - STABLE_S:
            self._seen.popleft()
        least, most = math.floor(ready / MOST_DOWN), math.ceil(ready * MOST_UP)
        stable = min(max(math.ceil(self._mean(now_s - STABLE_S) / self._target), least), most)
        panic = min(max(math.ceil(self._mean(now_s - PANIC_S) / self._target), least), most)
        if self._panic_until_s is None:  # a restart must not shrink a service whose history it lost
            self._panic_until_s, self._most = now_s + STABLE_S, snapshot.specified
        if panic / ready >= PANIC_THRESHOLD:
            self._panic_until_s = now_s + STABLE_S
        if now_s < self._panic_until_s:
            self._most = max(self._most, panic, stable)
            return self._most
        self._most = 0
        return max(1, stable)

    def _mean(self, since_s: float) -> float:
        values = [value for time_s, value in self._seen if time_s > since_s]
        return sum(values) / len(values)
