"""llm-d's workload variant autoscaler: saturation by spare capacity (V1), and by tokens (V2).

Its number goes through an HPA, whose windows are the second argument; the chart ships 240 s in both directions.
"""

import math
import statistics
from abc import ABC, abstractmethod
from collections import deque

from pagefleet.autoscaler.simulate.policies.hpa import Stabilizer
from pagefleet.autoscaler.snapshot import Reading, Snapshot

KV_THRESHOLD, QUEUE_THRESHOLD = 0.80, 5
KV_SPARE, QUEUE_SPARE = 0.10, 3.0
UP_LOAD = 0.85
"""Share of its capacity that V2 gives a replica before it adds one: the target that its users tune."""
LOAD_BAND = 0.15
"""How far below V2 takes one away."""
PEAK_S = 60.0
OPTIMIZE_S = 60.0


class _Optimizer(ABC):
    """Decide every minute; an HPA reads the number every 15 s."""

    interval_s = 15.0

    def __init__(self, *, up_window_s: float, down_window_s: float) -> None:
        self._stabilizer = Stabilizer(up_s=up_window_s, down_s=down_window_s)
        self._wanted = 1
        self._optimized_s = float("-inf")

    def desired(self, snapshot: Snapshot) -> int:
        """Return the number of replicas that should exist."""
        if snapshot.time_s - self._optimized_s >= OPTIMIZE_S:
            self._optimized_s = snapshot.time_s
            self._wanted = self._optimize(snapshot)
        return self._stabilizer.limit(snapshot.time_s, snapshot.specified, max(1, self._wanted))

    @abstractmethod
    def _optimize(self, snapshot: Snapshot) -> int:
        """Return the number of replicas that the present load asks for."""


class SaturationV1(_Optimizer):
    """Add a replica when the spare capacity of those that are not saturated is small; take one when two would do."""

    def __init__(self, *, up_window_s: float, down_window_s: float) -> None:
        super().__init__(up_window_s=up_window_s, down_window_s=down_window_s)
        self._peaks: dict[str, deque[tuple[float, float, float]]] = {}

    def desired(self, snapshot: Snapshot) -> int:
        """Return the number of replicas that should exist."""
        self._see(snapshot)
        return super().desired(snapshot)

    def _see(self, snapshot: Snapshot) -> None:
        for replica in snapshot.ready:
            if replica.reading is not None:
                seen = self._peaks.setdefault(replica.name, deque())
                seen.append((snapshot.time_s, replica.reading.occupancy, replica.reading.queue_depth))
                while seen[0][0] <= snapshot.time_s - PEAK_S:
                    seen.popleft()

    def _optimize(self, snapshot: Snapshot) -> int:
        current = snapshot.specified
        if snapshot.pending or len(snapshot.ready) != current:
            return current  # in transition nothing is decided
        peaks = [
            (max(entry[1] for entry in seen), max(entry[2] for entry in seen))
            for seen in (self._peaks.get(replica.name) for replica in snapshot.ready)
            if seen
        ]
        free = [(kv, queue) for kv, queue in peaks if kv < KV_THRESHOLD and queue < QUEUE_THRESHOLD]
        if not free:
            return current + 1
        kv = statistics.fmean(kv for kv, _ in free)
        queue = statistics.fmean(queue for _, queue in free)
        if KV_THRESHOLD - kv < KV_SPARE or QUEUE_THRESHOLD - queue < QUEUE_SPARE:
            return current + 1
        count = len(free)
        if count >= 2:
            grown = count / (count - 1)
            if KV_THRESHOLD - kv * grown >= KV_SPARE and QUEUE_THRESHOLD - queue * grown >= QUEUE_SPARE:
                return current - 1
        return current


class SaturationV2(_Optimizer):
    """Compare tokens in use and waiting with the tokens that a replica can hold before it queues."""

    def __init__(
        self,
        *,
        up_window_s: float,
        down_window_s: float,
        block_size: int,
        max_num_seqs: int,
        up_load: float = UP_LOAD,
    ) -> None:
        super().__init__(up_window_s=up_window_s, down_window_s=down_window_s)
        self._block_size, self._max_num_seqs = block_size, max_num_seqs
        self._up_load, self._down_load = up_load, up_load - LOAD_BAND
        self._saturated: deque[float] = deque(maxlen=10)
        self._before: dict[str, Reading] = {}
        self._input, self._output = 1000.0, 200.0

    def _optimize(self, snapshot: Snapshot) -> int:
        readings = snapshot.ready_readings
        if not readings:
            return snapshot.specified
        self._learn_lengths(snapshot)
        capacity = statistics.median(self._capacity(reading) for reading in readings)
        demand = sum(
            reading.blocks_active * self._block_size + reading.queue_depth * self._input for reading in readings
        )
        count = len(snapshot.ready) + len(snapshot.pending)
        required = demand / self._up_load - count * capacity
        spare = len(snapshot.ready) * capacity - demand / self._down_load
        if required > 0:
            return count + math.ceil(required / capacity)
        if spare > 0 and not snapshot.pending:
            return max(1, count - math.floor(spare / capacity))
        return count

    def _capacity(self, reading: Reading) -> float:
        held = reading.blocks_total * self._block_size * KV_THRESHOLD
        if reading.queue_depth >= QUEUE_THRESHOLD:
            self._saturated.append(reading.blocks_active * self._block_size)
        if self._saturated:
            return max(1.0, min(held, statistics.fmean(self._saturated)))
        chunk = 2048.0
        sequences = min(chunk * self._output / (self._input + self._output), float(self._max_num_seqs))
        return max(1.0, min(held, sequences * (self._input + self._output / 2)))

    def _learn_lengths(self, snapshot: Snapshot) -> None:
        prompt = admitted = output = finished = 0
        for replica in snapshot.ready:
            now, before = replica.reading, self._before.get(replica.name)
            if now is None:
                continue
            prompt += now.prompt_tokens_total - (before.prompt_tokens_total if before else 0)
            admitted += now.admitted_total - (before.admitted_total if before else 0)
            output += now.finished_output_tokens_total - (before.finished_output_tokens_total if before else 0)
            finished += now.finished_total - (before.finished_total if before else 0)
            self._before[replica.name] = now
        if admitted > 0 and prompt > 0:
            self._input = prompt / admitted
        if finished > 0 and output > 0:
            self._output = output / finished
