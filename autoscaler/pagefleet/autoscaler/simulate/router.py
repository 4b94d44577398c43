"""Which replica gets a request."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pagefleet.autoscaler.simulate.replica import Replica
from pagefleet.autoscaler.simulate.workload import Arrival

STALE_S = 5.0
"""Time between two polls of a router that asks replicas for their load."""


class Router(Protocol):
    """Choose one of the ready replicas, of which there is at least one, in order of their age."""

    def choose(self, arrival: Arrival, replicas: Sequence[Replica], now_s: float, /) -> Replica:
        """Return the replica that gets this arrival."""
        ...


class RoundRobin:
    """Choose one after the other."""

    def __init__(self) -> None:
        self._placed = 0

    def choose(self, _arrival: Arrival, replicas: Sequence[Replica], _now_s: float, /) -> Replica:
        """Return the replica that gets this arrival."""
        self._placed += 1
        return replicas[self._placed % len(replicas)]


class LeastRequests:
    """Choose the replica with the fewest requests in flight."""

    def choose(self, _arrival: Arrival, replicas: Sequence[Replica], _now_s: float, /) -> Replica:
        """Return the replica that gets this arrival."""
        return min(replicas, key=lambda replica: replica.in_flight)


class StaleLeastRequests:
    """Choose by numbers of requests that are up to `interval_s` old, as a router that polls does."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._read_s = float("-inf")
        self._in_flight: dict[int, int] = {}

    def choose(self, _arrival: Arrival, replicas: Sequence[Replica], now_s: float, /) -> Replica:
        """Return the replica that gets this arrival."""
        if now_s - self._read_s >= self._interval_s:
            self._read_s = now_s
            self._in_flight = {id(replica): replica.in_flight for replica in replicas}
        return min(replicas, key=lambda replica: self._in_flight.get(id(replica), 0))


class PrefixAffinity:
    """Choose the replica that has most of the prefix, unless it has much more to do than the others."""

    def __init__(self, slack: float = 1.5) -> None:
        self._slack = slack

    def choose(self, arrival: Arrival, replicas: Sequence[Replica], _now_s: float, /) -> Replica:
        """Return the replica that gets this arrival."""
        most = self._slack * sum(replica.in_flight for replica in replicas) / len(replicas) + 1
        able = [replica for replica in replicas if replica.in_flight <= most]
        return max(able, key=lambda replica: (replica.prefix_hit_blocks(arrival), -replica.in_flight))


class Skewed:
    """Send a share of all requests to the oldest replica, and the rest to those with the fewest: a broken router."""

    def __init__(self, share: float, *, seed: int) -> None:
        self._share = share
        self._draws = random.Random(seed)  # noqa: S311 - reproducible draws

    def choose(self, _arrival: Arrival, replicas: Sequence[Replica], _now_s: float, /) -> Replica:
        """Return the replica that gets this arrival."""
        if len(replicas) == 1 or self._draws.random() < self._share:
            return replicas[0]
        return min(replicas[1:], key=lambda replica: replica.in_flight)


ROUTERS: Mapping[str, Callable[[], Router]] = {
    "least-requests": LeastRequests,
    "round-robin": RoundRobin,
    "stale": lambda: StaleLeastRequests(STALE_S),
    "prefix": PrefixAffinity,
}
"""By the name that a command takes."""
