"""Two bounds: a fixed number, and one that knows the future."""

from bisect import bisect_left

from pagefleet.autoscaler.simulate.workload import Workload
from pagefleet.autoscaler.snapshot import Snapshot

WINDOW_S = 30.0


class Static:
    """Keep a number of replicas."""

    interval_s = 60.0

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def desired(self, _snapshot: Snapshot) -> int:
        """Return the number of replicas that should exist."""
        return self._replicas


class Clairvoyant:
    """Have enough replicas for the largest rate of the coming lead time, which it knows, in windows of 30 s."""

    interval_s = 5.0

    def __init__(self, workload: Workload, *, requests_per_s: float, lead_time_s: float, load_share: float) -> None:
        self._times_s = [arrival.time_s for arrival in workload.arrivals]
        self._per_replica = requests_per_s * load_share
        self._ahead_s = lead_time_s + 15.0

    def desired(self, snapshot: Snapshot) -> int:
        """Return the number of replicas that should exist."""
        most, begin_s = 0, snapshot.time_s
        while begin_s <= snapshot.time_s + self._ahead_s:
            end = bisect_left(self._times_s, begin_s + WINDOW_S)
            most = max(most, end - bisect_left(self._times_s, begin_s))
            begin_s += 5.0
        return max(1, -int(-most / WINDOW_S // self._per_replica))
