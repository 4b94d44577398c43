"""Kubernetes' HorizontalPodAutoscaler (v2) on a metric of pods, and KEDA, which drives one with several metrics."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from pagefleet.autoscaler.snapshot import Reading, Snapshot

Metric = Callable[[Reading], float]
TOLERANCE = 0.1
UP_SHARE, UP_PODS = 1.0, 4
"""Default scale-up policies: 100 % or 4 pods in 15 s, whichever is more."""


def occupancy(reading: Reading) -> float:
    """Return the share of KV-cache blocks in use."""
    return reading.occupancy


def waiting(reading: Reading) -> float:
    """Return the requests not yet admitted."""
    return reading.queue_depth


def in_flight(reading: Reading) -> float:
    """Return the requests that wait or run."""
    return reading.in_flight


class Stabilizer:
    """Take the most of the recommendations in the down window and the least of those in the up window."""

    def __init__(self, *, up_s: float, down_s: float) -> None:
        self._up_s, self._down_s = up_s, down_s
        self._seen: list[tuple[float, int]] = []

    def limit(self, now_s: float, current: int, recommended: int) -> int:
        """Return the recommendation as far as both windows allow it. Before the first, the present number counts."""
        if not self._seen:
            self._seen.append((now_s, current))
        self._seen.append((now_s, recommended))
        self._seen = [
            (time_s, value) for time_s, value in self._seen if time_s > now_s - max(self._up_s, self._down_s, 1)
        ]
        least = min((value for time_s, value in self._seen if time_s > now_s - self._up_s), default=recommended)
        most = max((value for time_s, value in self._seen if time_s > now_s - self._down_s), default=recommended)
        least, most = min(least, recommended), max(most, recommended)
        if current < least:
            return least
        return most if current > most else current


class _Autoscaler(ABC):
    """What an HPA does with proposals: the largest wins, within windows and the default scale-up policies."""

    interval_s = 15.0

    def __init__(
        self, metrics: Sequence[tuple[Metric, float]], *, up_window_s: float = 0.0, down_window_s: float = 300.0
    ) -> None:
        self._metrics = metrics
        self._stabilizer = Stabilizer(up_s=up_window_s, down_s=down_window_s)

    def desired(self, snapshot: Snapshot) -> int:
        """Return the number of replicas that should exist."""
        readings = snapshot.ready_readings
        if not readings:
            return snapshot.specified
        current = snapshot.specified
        proposals = [
            self._propose([metric(reading) for reading in readings], target, len(snapshot.pending), current)
            for metric, target in self._metrics
        ]
        stabilized = self._stabilizer.limit(snapshot.time_s, current, max(1, *proposals))
        return min(stabilized, max(math.ceil(current * (1 + UP_SHARE)), current + UP_PODS))

    @abstractmethod
    def _propose(self, values: Sequence[float], target: float, pending: int, current: int) -> int:
        """Return the replicas that one metric of the ready pods asks for."""


class Hpa(_Autoscaler):
    """Scale by means of pod metrics over their targets; pods that load count as idle where it would scale up."""

    def _propose(self, values: Sequence[float], target: float, pending: int, current: int) -> int:
        ratio = sum(values) / len(values) / target
        if abs(1 - ratio) <= TOLERANCE:
            return current
        if ratio > 1 and pending:
            ratio = sum(values) / (len(values) + pending) / target
            if ratio <= 1 + TOLERANCE:
                return current
            return math.ceil(ratio * (len(values) + pending))
        return math.ceil(ratio * len(values))


class Keda(_Autoscaler):
    """Scale by sums over targets (AverageValue), as KEDA's triggers do."""

    def _propose(self, values: Sequence[float], target: float, _pending: int, current: int) -> int:
        needed = sum(values) / target
        is_near = current > 0 and abs(1 - needed / current) <= TOLERANCE
        return current if is_near else math.ceil(needed)
