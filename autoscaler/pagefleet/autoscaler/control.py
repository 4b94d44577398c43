"""The leader's loop: every tick ask all replicas, decide for each service, write what changed.

reports of all replicas --> snapshot --> decide --> scale subresource, then status, then event
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from typing import Any

from pagefleet.api.client_errors import ApiError
from pagefleet.api.v1alpha1 import AutoscalingStatus
from pagefleet.autoscaler.actuate import Actuator
from pagefleet.autoscaler.decide import decide
from pagefleet.autoscaler.decision_log import DecisionLog
from pagefleet.autoscaler.explain import Told, is_urgent, is_worth_writing, tell_conditions
from pagefleet.autoscaler.metrics import AutoscalerMetrics
from pagefleet.autoscaler.records import ServiceRecord
from pagefleet.autoscaler.scrape import Scraper, Target
from pagefleet.autoscaler.service_memory import CONFLICT, Decide, ServiceMemory, Step
from pagefleet.autoscaler.store import Store

WRITES_AT_ONCE = 8
MOST_STATUS_WRITES = 20
"""Of signals alone, in one tick: with hundreds of busy services each waits a little longer."""
SERVICES_AT_A_STRETCH = 8
"""After so many services others may use the event loop, health checks among them."""
CONDITION_EVENT_S = 600.0
"""Least time between two events of one condition of one service."""

logger = logging.getLogger(__name__)


class Control:
    """Decide for every service of the store."""

    def __init__(
        self,
        store: Store,
        scraper: Scraper,
        actuator: Actuator,
        metrics: AutoscalerMetrics,
        log: DecisionLog,
        *,
        clock: Callable[[], float],
        tick_s: float,
        status_interval_s: float,
        find_hold: Callable[[], str | None] = lambda: None,
        decide: Decide = decide,
    ) -> None:
        """`clock` is the one of the snapshots; `find_hold` names what forbids any change."""
        self._store, self._scraper, self._actuator = store, scraper, actuator
        self._metrics, self._log = metrics, log
        self._clock, self._tick_s, self._status_interval_s = clock, tick_s, status_interval_s
        self._find_hold, self._decide = find_hold, decide
        self._memories: dict[str, ServiceMemory] = {}
        self.ticked_monotonic_s: float | None = None
        """When the last tick ended."""

    async def run(self) -> None:
        """Tick until cancelled; a tick that took too long makes the next one begin at once."""
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            await self.tick()
            self.ticked_monotonic_s = time.monotonic()
            next_s = max(next_s + self._tick_s, loop.time())
            await asyncio.sleep(next_s - loop.time())

    async def tick(self) -> None:
        """Ask, decide and write once."""
        began_s = time.perf_counter()
        services = self._store.services()
        await self._scraper.ask(self._targets(services))
        services = self._store.services()  # some may have gone meanwhile
        self._forget_others(services)
        steps = []
        for number, record in enumerate(services):
            if number % SERVICES_AT_A_STRETCH == SERVICES_AT_A_STRETCH - 1:
                await asyncio.sleep(0)
            steps.append(self._step(record))
        await self._write_all(steps)
        modes = Counter(step.mode for step in steps)
        self._metrics.observe_tick(time.perf_counter() - began_s, modes, self._scraper.outcomes)

    # ---- what is seen ----

    def _targets(self, services: Iterable[ServiceRecord]) -> Iterable[Target]:
        for record in services:
            for pod in self._store.pods(record.key):
                # One that starts has no load; one that leaves still has, and what it did counts as demand.
                if pod.ip is not None and (pod.is_ready or self._scraper.known(pod.uid) is not None):
                    yield Target(pod.uid, pod.ip, record.ttft_slo_s, record.itl_slo_s)

    def _step(self, record: ServiceRecord) -> Step:
        memory = self._memories.get(record.uid)
        if memory is None:
            memory = self._memories[record.uid] = ServiceMemory(record, decide=self._decide)
        now_s = self._clock()
        replicas, reports = [], []
        pods = self._store.pods(record.key)
        for pod in pods:
            known = self._scraper.known(pod.uid)
            if known is None or known.report is None:
                replicas.append(self._store.replica(pod, now_s))
                continue
            reports.append(known.report)
            replicas.append(self._store.replica(pod, now_s, known.reading, is_draining=known.report.draining))
        # One more would wait beside the one for which no node has room.
        schedulable = 0 if any(pod.is_unschedulable for pod in pods) else None
        step = memory.step(
            record, tuple(replicas), reports, now_s=now_s, hold=self._find_hold(), schedulable=schedulable
        )
        if step.fault is not None and (memory.written is None or memory.written.message != step.fault):
            logger.error("%s: %s", record.key, step.fault)
        self._log.take(step)
        self._metrics.observe(step)
        return step

    def _forget_others(self, services: Iterable[ServiceRecord]) -> None:
        present = {record.uid: record.key for record in services}
        for uid in self._memories.keys() - present.keys():
            del self._memories[uid]
        self._log.keep_only(present)
        self._metrics.keep_only(present.values())

    # ---- what is written ----

    async def _write_all(self, steps: list[Step]) -> None:
        """Scale first, then tell; what is not done by the next tick is given up, and decided again."""
        scaling = [step for step in steps if step.is_to_scale]
        others = sorted((step for step in steps if not step.is_to_scale), key=self._written_s)
        urgent = [step for step in others if self._is_urgent(step)]
        signals = (step for step in others if not self._is_urgent(step) and self._is_due(step))
        writes = [
            *(self._scale(step) for step in scaling),
            *(self._tell(step) for step in (*urgent, *islice(signals, MOST_STATUS_WRITES))),
        ]
        limit = asyncio.Semaphore(WRITES_AT_ONCE)

        async def limited(write: Coroutine[Any, Any, None]) -> None:
            async with limit:
                await write

        tasks = [asyncio.ensure_future(limited(write)) for write in writes]
        if not tasks:
            return
        done, late = await asyncio.wait(tasks, timeout=self._tick_s)
        for task in late:
            task.cancel()
        for task in late:
            await asyncio.wait({task})
        for task in done:
            if error := task.exception():
                logger.error("a write failed", exc_info=error)

    def _written_s(self, step: Step) -> float:
        return self._memories[step.record.uid].written_s

    def _is_urgent(self, step: Step) -> bool:
        return is_urgent(self._memories[step.record.uid].written, step.mode, step.decision)

    def _is_due(self, step: Step) -> bool:
        """Tell whether it is time for the status, and whether it says anything new."""
        memory = self._memories[step.record.uid]
        is_time = step.snapshot.time_s - memory.written_s >= self._status_interval_s
        return is_time and is_worth_writing(memory.written, memory.status(step))

    async def _scale(self, step: Step) -> None:
        memory, decision = self._memories[step.record.uid], step.decision
        if decision is None:
            return
        is_done, fault = False, None
        try:
            is_done = await self._actuator.scale(step.record, decision.desired)
        except ApiError as error:
            fault = f"{decision.current} to {decision.desired} replicas is decided, but could not be written: {error}"
            logger.warning("%s: %s", step.record.key, fault)
        finally:  # also when there was no time left
            if not is_done:
                memory.not_scaled(step)
        if is_done:
            memory.scaled(step)
            is_reversal = len(step.state.reversals_s) > len(step.state_before.reversals_s)
            self._metrics.count_change(step.record.key, str(decision.reason), is_reversal=is_reversal)
            logger.info("%s: %s (%s)", step.record.key, memory.last_decisions[0].message, decision.reason)
        elif fault is None:
            return  # somebody else changed the service: the next tick sees what
        await self._tell(step, fault=fault)

    async def _tell(self, step: Step, *, fault: str | None = None) -> None:
        memory = self._memories[step.record.uid]
        status = memory.status(step, fault=fault)
        told = self._events(memory, step, status)
        record = self._store.service(step.record.uid)
        if record is None:
            return
        try:
            await self._actuator.write_status(record, status)
            memory.written, memory.written_s = status, step.snapshot.time_s
            for event in told:
                await self._actuator.tell(record, event, step.snapshot.time_s)
        except ApiError as error:
            logger.warning("%s: the status could not be written: %s", record.key, error)

    def _events(self, memory: ServiceMemory, step: Step, status: AutoscalingStatus) -> list[Told]:
        """Return what has happened that is worth an event: a change, a conflict, a condition that came to hold."""
        if step.mode not in ("Active", CONFLICT):
            return []
        before = memory.written
        told = []
        newest = status.last_decisions[0] if status.last_decisions else None
        if newest is not None and (before is None or before.last_decisions != status.last_decisions):
            is_up = newest.to_replicas > newest.from_replicas
            told.append(Told(reason="ScaledUp" if is_up else "ScaledDown", message=newest.message or ""))
        if step.conflict is not None and (before is None or before.mode != CONFLICT):
            told.append(Told(reason=CONFLICT, message=step.conflict, is_warning=True))
        now_s = step.snapshot.time_s
        for event in tell_conditions(() if before is None else before.conditions, status.conditions):
            if now_s - memory.told.get(event.reason, float("-inf")) >= CONDITION_EVENT_S:
                memory.told[event.reason] = now_s
                told.append(event)
        return told
