"""Pods that come and go, and the loop over simulated time.

created --cold start--> ready --chosen by a scale-down--> draining --nothing in flight--> gone
   |--cancelled by a scale-down--> gone                     |--demand returns--> ready
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from pagefleet.autoscaler.simulate.faults import Faults
from pagefleet.autoscaler.simulate.outcome import Outcome, summarize
from pagefleet.autoscaler.simulate.replica import Counters, EngineModel, Replica, Request
from pagefleet.autoscaler.simulate.router import LeastRequests, Router
from pagefleet.autoscaler.simulate.workload import Workload
from pagefleet.autoscaler.snapshot import Reading, ReplicaPhase, Snapshot
from pagefleet.autoscaler.snapshot import Replica as SeenReplica

OVERTIME_S = 900.0
"""Time after the last arrival in which requests may still finish."""


class Policy(Protocol):
    """Decide how many replicas there should be; it may remember what it saw."""

    interval_s: float
    """Seconds between two decisions."""

    def desired(self, snapshot: Snapshot, /) -> int:
        """Return the number of replicas that should exist."""
        ...


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What the fleet runs in."""

    engine: EngineModel
    ttft_slo_s: float = 2.0
    itl_slo_s: float = 0.1
    initial_replicas: int = 1
    max_replicas: int = 40
    cold_start_s: tuple[float, float] = (100.0, 140.0)
    """Least and most seconds from a pod's creation until it takes requests."""
    scrape_interval_s: float = 5.0
    scrape_delay_s: float = 0.0
    """Seconds that a report takes until the policy can see it."""
    scrape_loss: float = 0.0
    """Share of reports that get lost."""
    faults: Faults = field(default_factory=Faults)
    seed: int = 0


@dataclass(slots=True, eq=False)
class _Pod:
    name: str
    replica: Replica
    created_s: float
    slowdown: float = 1.0
    end_step: Callable[[float], None] = lambda _now_s: None
    phase: ReplicaPhase = ReplicaPhase.PENDING
    ready_s: float | None = None
    gone_s: float | None = None
    readings: deque[Reading] = field(default_factory=deque)
    """The latest that the policy may see, and younger ones that are still on their way."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Where a run can end early, because what comes cannot change how it compares; the default is never."""

    most_replica_hours: float = float("inf")
    most_missed: float = float("inf")
    """Requests that were late or slow."""


NO_LIMITS = Limits()


class Fleet:
    """Run one policy over one workload."""

    def __init__(
        self,
        workload: Workload,
        conditions: Conditions,
        policy: Policy,
        *,
        router: Router | None = None,
        limits: Limits = NO_LIMITS,
    ) -> None:
        self._workload = workload
        self._limits = limits
        self._stopped_s: float | None = None
        self._conditions = conditions
        self._policy = policy
        self._router = router or LeastRequests()
        self._draws = random.Random(conditions.seed)  # noqa: S311 - reproducible draws
        self._pods: list[_Pod] = []
        self._gone: list[_Pod] = []
        self._held: deque[Request] = deque()
        self._requests: list[Request] = []
        self._specified = conditions.initial_replicas
        self._scales: list[tuple[float, int, int]] = []
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0
        self._ready: list[_Pod] = []
        self._end_s = workload.duration_s + OVERTIME_S

    def run(self) -> Outcome:
        """Play the workload to its end and return what came of it."""
        for _ in range(self._conditions.initial_replicas):
            self._become_ready(self._create(0.0), 0.0)
        for time_s, name in self._conditions.faults.counters_begin_again_s:
            self._schedule(time_s, partial(self._count_again, name))
        for time_s, replicas in self._conditions.faults.written_by_others:
            self._schedule(time_s, partial(self._scale, replicas))
        self._schedule(0.0, self._scrape)
        self._schedule(0.0, self._tick)
        arrivals = iter(self._workload.arrivals)
        arrival = next(arrivals, None)
        events = self._events
        while events and self._stopped_s is None:
            due_s = events[0][0]
            if arrival is not None and arrival.time_s <= due_s:
                request = Request(arrival)
                self._requests.append(request)
                self._place(request, arrival.time_s)
                arrival = next(arrivals, None)
                continue
            now_s, _, act = heapq.heappop(events)
            if arrival is None and now_s > self._workload.duration_s and (now_s > self._end_s or self._is_idle()):
                break
            act(now_s)
        return self._outcome()

    def _outcome(self) -> Outcome:
        requests, unseen = self._requests, 0
        if self._stopped_s is not None:  # what has not come, or not ended, counts as in time
            requests = [request for request in requests if request.end_s is not None]
            unseen = len(self._workload.arrivals) - len(requests)
        return summarize(
            requests,
            [(pod.created_s, self._stopped_s if pod.gone_s is None else pod.gone_s) for pod in self._gone + self._pods],
            self._scales,
            unseen=unseen,
            stopped_s=self._stopped_s,
            duration_s=self._workload.duration_s,
            ttft_slo_s=self._conditions.ttft_slo_s,
            itl_slo_s=self._conditions.itl_slo_s,
            preemptions=sum(pod.replica.counters.preemptions for pod in self._gone + self._pods),
        )

    # ---- requests ----

    def _place(self, request: Request, now_s: float) -> None:
        if not self._ready:
            self._held.append(request)
            return
        replica = self._router.choose(request.arrival, [pod.replica for pod in self._ready], now_s)
        replica.submit(request)
        if not replica.is_stepping:
            self._begin_step(next(pod for pod in self._ready if pod.replica is replica), now_s)

    def _begin_step(self, pod: _Pod, now_s: float) -> None:
        took_s = pod.replica.begin_step(pod.slowdown)
        if took_s is not None:
            self._number += 1
            heapq.heappush(self._events, (now_s + took_s, self._number, pod.end_step))

    def _end_step(self, pod: _Pod, now_s: float) -> None:
        pod.replica.end_step(now_s)
        if pod.phase is ReplicaPhase.DRAINING and pod.replica.in_flight == 0:
            self._remove(pod, now_s)
        else:
            self._begin_step(pod, now_s)

    def _is_idle(self) -> bool:
        return not self._held and all(pod.replica.in_flight == 0 for pod in self._pods)

    # ---- pods ----

    def _create(self, now_s: float) -> _Pod:
        replica = Replica(self._conditions.engine, self._conditions.ttft_slo_s, self._conditions.itl_slo_s)
        name = f"replica-{len(self._pods) + len(self._gone)}"
        pod = _Pod(name, replica, now_s, slowdown=self._conditions.faults.slowdown(name))
        pod.end_step = partial(self._end_step, pod)
        self._pods.append(pod)
        return pod

    def _become_ready(self, pod: _Pod, now_s: float) -> None:
        if pod.phase is not ReplicaPhase.PENDING or pod.gone_s is not None:
            return
        pod.phase, pod.ready_s = ReplicaPhase.READY, now_s
        self._ready.append(pod)
        while self._held:
            self._place(self._held.popleft(), now_s)

    def _remove(self, pod: _Pod, now_s: float) -> None:
        pod.gone_s = now_s
        self._pods.remove(pod)
        self._gone.append(pod)

    def _scale(self, desired: int, now_s: float) -> None:
        desired = min(max(0, desired), self._conditions.max_replicas)
        if desired == self._specified:
            return
        self._scales.append((now_s, self._specified, desired))
        self._specified = desired
        staying = [pod for pod in self._pods if pod.phase is not ReplicaPhase.DRAINING]
        for pod in sorted(self._pods, key=lambda pod: -pod.created_s):
            if len(staying) < desired and pod.phase is ReplicaPhase.DRAINING:
                pod.phase = ReplicaPhase.READY  # a drain is called off before a pod is started
                self._ready.append(pod)
                staying.append(pod)
        for _ in range(desired - len(staying)):
            pod = self._create(now_s)
            cold_start_s = self._conditions.faults.cold_start_s(
                now_s, self._draws.uniform(*self._conditions.cold_start_s)
            )
            if cold_start_s is not None:
                self._schedule(now_s + cold_start_s, partial(self._become_ready, pod))
        # Those that do not serve yet go first, the newest of them first, then those with the least to finish.
        leaving = sorted(
            staying, key=lambda pod: (pod.phase is ReplicaPhase.READY, pod.replica.in_flight, -pod.created_s)
        )
        for pod in leaving[: max(0, len(staying) - desired)]:
            self._leave(pod, now_s)

    def _leave(self, pod: _Pod, now_s: float) -> None:
        if pod in self._ready:
            self._ready.remove(pod)
        if pod.phase is ReplicaPhase.PENDING or pod.replica.in_flight == 0:
            self._remove(pod, now_s)
        else:
            pod.phase = ReplicaPhase.DRAINING

    # ---- what the policy sees ----

    def _scrape(self, now_s: float) -> None:
        conditions = self._conditions
        for pod in self._pods:
            lost = self._draws.random() < conditions.scrape_loss
            if pod.phase is not ReplicaPhase.PENDING and not lost and not conditions.faults.is_silent(pod.name, now_s):
                pod.readings.append(conditions.faults.report(pod.name, _read(pod.replica, now_s)))
        self._schedule(now_s + conditions.scrape_interval_s, self._scrape)

    def _count_again(self, name: str, _now_s: float) -> None:
        for pod in self._pods:
            if pod.name == name:
                pod.replica.counters = Counters()

    def _tick(self, now_s: float) -> None:
        clock_s = self._conditions.faults.clock_s
        snapshot = Snapshot(
            time_s=clock_s(now_s),
            replicas=tuple(
                SeenReplica(
                    name=pod.name,
                    phase=pod.phase,
                    created_s=pod.created_s,
                    ready_s=pod.ready_s,
                    reading=_at(clock_s, self._latest_reading(pod, now_s)),
                )
                for pod in self._pods
            ),
            specified=self._specified,
            held_requests=len(self._held),
        )
        self._scale(self._policy.desired(snapshot), now_s)
        if self._is_decided(now_s):
            self._stopped_s = now_s
        self._schedule(now_s + self._policy.interval_s, self._tick)

    def _is_decided(self, now_s: float) -> bool:
        """Tell whether the run has gone beyond its limits; a request that is late and slow counts once."""
        if self._limits is NO_LIMITS:
            return False
        pods = self._gone + self._pods
        late = sum(pod.replica.counters.late_first_tokens for pod in pods)
        slow = sum(pod.replica.counters.slow_answers for pod in pods)
        hours = sum((now_s if pod.gone_s is None else pod.gone_s) - pod.created_s for pod in pods) / 3600
        return hours > self._limits.most_replica_hours or max(late, slow) > self._limits.most_missed

    def _latest_reading(self, pod: _Pod, now_s: float) -> Reading | None:
        seen_s = now_s - self._conditions.scrape_delay_s
        while len(pod.readings) > 1 and pod.readings[1].read_s <= seen_s:
            pod.readings.popleft()
        return pod.readings[0] if pod.readings and pod.readings[0].read_s <= seen_s else None

    def _schedule(self, due_s: float, act: Callable[[float], None]) -> None:
        self._number += 1  # what is due at one time happens in the order in which it was scheduled
        heapq.heappush(self._events, (due_s, self._number, act))


def _at(clock_s: Callable[[float], float], reading: Reading | None) -> Reading | None:
    """Return a reading with the time at which it was made, as the autoscaler's clock showed it then."""
    return None if reading is None else replace(reading, read_s=clock_s(reading.read_s))


def _read(replica: Replica, now_s: float) -> Reading:
    counters = replica.counters
    return Reading(
        read_s=now_s,
        blocks_active=replica.blocks_active,
        blocks_total=replica.model.blocks_total,
        queue_depth=len(replica.waiting),
        tokens_queued=replica.tokens_queued,
        queue_age_s=replica.oldest_waiting_s(now_s),
        running=replica.running,
        in_flight=replica.in_flight,
        arrivals_total=counters.arrivals,
        finished_total=counters.finished,
        prompt_tokens_total=counters.prompt_tokens,
        prefix_hit_tokens_total=counters.prefix_hit_tokens,
        finished_output_tokens_total=counters.finished_output_tokens,
        preemptions_total=counters.preemptions,
        first_tokens_total=counters.first_tokens,
        late_first_tokens_total=counters.late_first_tokens,
        slow_answers_total=counters.slow_answers,
        steps_total=counters.steps,
        step_seconds_total=counters.step_s,
        computed_tokens_total=counters.computed_tokens,
        kv_tokens_read_total=counters.kv_tokens_read,
        sequence_steps_total=counters.sequence_steps,
    )


def simulate(
    workload: Workload,
    conditions: Conditions,
    policy: Policy,
    *,
    router: Router | None = None,
    limits: Limits = NO_LIMITS,
) -> Outcome:
    """Run one policy over one workload and return what came of it."""
    return Fleet(workload, conditions, policy, router=router, limits=limits).run()
