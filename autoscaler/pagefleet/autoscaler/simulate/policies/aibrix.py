"""AIBrix's APA: the mean of a pod metric over 180 s against a target, with fluctuation tolerances."""

import math
from collections import deque

from pagefleet.autoscaler.simulate.policies.hpa import Metric
from pagefleet.autoscaler.snapshot import Snapshot

STABLE_S = 180.0
TOLERANCE = 0.1
MOST = 2.0
DOWN_COOLDOWN_S = 300.0


class Apa:
    """Multiply the replicas by mean over target, at most twice or half; the least of the down window applies."""

    interval_s = 10.0

    def __init__(self, metric: Metric, target: float) -> None:
        self._metric, self._target = metric, target
        self._seen: deque[tuple[float, float]] = deque()
        self._scaled_s = float("-inf")

    def desired(self, snapshot: Snapshot) -> int:
        """Return the number of replicas that should exist."""
        now_s, current = snapshot.time_s, snapshot.specified
        values = [self._metric(reading) for reading in snapshot.ready_readings]
        if values:
            self._seen.append((now_s, sum(values) / len(values)))
        while self._seen and self._seen[0][0] <= now_s - STABLE_S:
            self._seen.popleft()
        if not self._seen:
            return current
        ratio = sum(value for _, value in self._seen) / len(self._seen) / self._target
        if abs(1 - ratio) <= TOLERANCE:
            return current
        desired = max(1, math.ceil(current * min(max(ratio, 1 / MOST), MOST)))
        if desired < current and now_s - self._scaled_s < DOWN_COOLDOWN_S:
            return current
        if desired != current:
            self._scaled_s = now_s
        return desired
