"""NVIDIA Dynamo's planner: load-based scaling in its easy modes, and throughput-based scaling from a profile."""

import math

from pagefleet.autoscaler.snapshot import Reading, Snapshot

LOAD_INTERVAL_S, THROUGHPUT_INTERVAL_S = 5.0, 180.0
MODES = {"throughput": (1.0, 0.6), "latency": (0.4, 0.1)}
"""Utilization above which one worker is added, if any has it, and below which one goes, if all have it."""


class Load:
    """Add or take one replica by scheduled and queued tokens over the cache; do nothing while one is on its way."""

    interval_s = LOAD_INTERVAL_S

    def __init__(self, mode: str, *, block_size: int) -> None:
        self._up, self._down = MODES[mode]
        self._block_size = block_size

    def desired(self, snapshot: Snapshot) -> int:
        """Return the number of replicas that should exist."""
        current = snapshot.specified
        loads = [self._load(reading) for reading in snapshot.ready_readings]
        if not loads or snapshot.pending:
            return current
        if all(load > self._up for load in loads):
            return current + 1
        if current > 1 and all(load < self._down for load in loads):
            return current - 1
        return current

    def _load(self, reading: Reading) -> float:
        tokens = reading.blocks_active * self._block_size + reading.tokens_queued
        return tokens / (reading.blocks_total * self._block_size)


class Throughput:
    """Have enough replicas for the rate of the last interval, by the rate that a profile gives one of them."""

    interval_s = THROUGHPUT_INTERVAL_S

    def __init__(self, requests_per_s: float) -> None:
        self._per_replica = requests_per_s
        self._totals: dict[str, int] = {}

    def desired(self, snapshot: Snapshot) -> int:
        """Return the number of replicas that should exist."""
        arrived = 0
        for replica in snapshot.replicas:
            if replica.reading is not None:
                arrived += replica.reading.arrivals_total - self._totals.get(replica.name, 0)
                self._totals[replica.name] = replica.reading.arrivals_total
        if snapshot.time_s == 0:
            return snapshot.specified
        return max(1, math.ceil(arrived / self.interval_s / self._per_replica))
