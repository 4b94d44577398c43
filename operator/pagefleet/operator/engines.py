"""Ask engines that start how far they are: the only way to tell a slow download from a stuck one."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
from pydantic import ValidationError

from pagefleet.api.capacity import CapacityReport, EnginePhase
from pagefleet.operator.plan.observed import PodRecord, Progress
from pagefleet.operator.plan.settings import ADMIN_PORT
from pagefleet.operator.store import ServiceKey

logger = logging.getLogger(__name__)

MOST_AT_ONCE = 32
"""Questions in flight: a burst of starts must not fill the process with sockets."""
MOST_LATE_QUESTIONS = 5
"""A pod that is ready and does not answer within half a minute can't be reached from here, and need not be."""
LONGEST_PAUSE_S = 8.0
"""Bound of the time between questions to an engine that does not answer; doubled from one question to the next."""
TIMEOUT_S = 2.0
"""An engine that is busy loading answers in milliseconds; one behind a network policy never does."""


@dataclass(slots=True)
class _Watched:
    key: ServiceKey
    pod: PodRecord
    report: CapacityReport | None = None
    changed_s: float = 0.0
    late_questions: int = 0
    """Questions since the pod is ready."""
    unanswered: int = 0
    """Questions since the last answer."""
    next_s: float = 0.0
    """When to ask again."""


class EngineWatch:
    """Follow the pods of the store; know the last report of each that starts."""

    def __init__(
        self, *, clock: Callable[[], float], on_change: Callable[[ServiceKey], None], poll_s: float = 1.0
    ) -> None:
        self._clock = clock
        self._on_change = on_change
        self._poll_s = poll_s
        self._watched: dict[str, _Watched] = {}

    def update(self, key: ServiceKey, pod: PodRecord, is_gone: bool) -> None:
        """Take a pod as the store has it now. Pods that were ready when first seen are never asked."""
        watched = self._watched.get(pod.uid)
        if is_gone or pod.is_terminating or pod.drain_began:
            self._watched.pop(pod.uid, None)
        elif watched is not None:
            watched.pod = pod
        elif not pod.is_ready:
            self._watched[pod.uid] = _Watched(key, pod, changed_s=self._clock())

    def progress_of(self, pod_uid: str) -> Progress | None:
        """Return what a pod last said, and for how long it has said so."""
        watched = self._watched.get(pod_uid)
        if watched is None or watched.report is None:
            return None
        return Progress(watched.report, self._clock() - watched.changed_s)

    async def run(self) -> None:
        """Ask until cancelled."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=MOST_AT_ONCE, force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            while True:
                now_s = self._clock()
                waiting = [one for one in self._watched.values() if one.next_s <= now_s and _is_worth_asking(one)]
                if waiting:
                    await asyncio.gather(*(self._ask(session, one) for one in waiting))
                await asyncio.sleep(self._poll_s)

    async def _ask(self, session: aiohttp.ClientSession, watched: _Watched) -> None:
        watched.late_questions += watched.pod.is_ready
        address = watched.pod.ip or ""
        host = f"[{address}]" if ":" in address else address
        try:
            async with session.get(f"http://{host}:{ADMIN_PORT}/capacity") as response:
                report = CapacityReport.model_validate_json(await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError, ValidationError) as error:
            logger.debug("%s did not answer: %s", watched.pod.name, error)
            watched.unanswered += 1
            pause_s = min(LONGEST_PAUSE_S, self._poll_s * 2.0 ** (watched.unanswered - 1))
            watched.next_s = self._clock() + pause_s - self._poll_s / 2  # the round that comes next to it
            return
        watched.unanswered = 0
        before, watched.report = watched.report, report
        if before is None or _said(before) != _said(report):
            watched.changed_s = self._clock()
            self._on_change(watched.key)


def _is_worth_asking(watched: _Watched) -> bool:
    """Tell whether a pod starts, or has become ready and was not asked since: its last report has what it measured."""
    pod, report = watched.pod, watched.report
    if pod.ip is None or not pod.is_running:
        return False
    if pod.is_ready and watched.late_questions >= MOST_LATE_QUESTIONS:
        return False
    return not pod.is_ready or report is None or report.phase is not EnginePhase.READY


def _said(report: CapacityReport) -> tuple[object, ...]:
    return report.phase, report.detail, report.blocks_total
