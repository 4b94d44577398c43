"""Ask engines for their load, to drain and to undrain, again and again while the plan says so."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import aiohttp
from pydantic import BaseModel, ConfigDict, ValidationError

from pagefleet.api.capacity import CapacityReport, Count
from pagefleet.operator.plan.drain import Question
from pagefleet.operator.plan.observed import DrainReport, PodRecord
from pagefleet.operator.plan.settings import ADMIN_PORT
from pagefleet.operator.store import ServiceKey

logger = logging.getLogger(__name__)

POLL_S = 0.5
"""Time between two questions to the same engine. Repeating /drain finds an engine that was restarted meanwhile."""
TIMEOUT_S = 2.0
"""Engines answer from memory, in milliseconds, whatever their load."""
MOST_AT_ONCE = 64


class DrainAnswer(BaseModel):
    """What an engine answers to `/drain` and `/undrain`."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    draining: bool
    """Whether it refuses new requests."""
    in_flight: Count
    """Requests that still wait for their last byte."""


@dataclass(slots=True)
class _Asked:
    key: ServiceKey
    pod: PodRecord
    question: Question
    report: DrainReport = field(default_factory=DrainReport)


class DrainWatch:
    """Ask what plans want to be asked; know the last answer to each question."""

    def __init__(self, *, on_change: Callable[[ServiceKey], None], poll_s: float = POLL_S) -> None:
        self._on_change = on_change
        self._poll_s = poll_s
        self._asked: dict[ServiceKey, dict[str, _Asked]] = {}
        self._has_work = asyncio.Event()

    def follow(self, key: ServiceKey, questions: Mapping[str, Question], pods: Iterable[PodRecord]) -> None:
        """Ask these questions, by pod uid, of a service's pods, and no others of it. A new question forgets answers."""
        before = self._asked.pop(key, {})
        asked = {}
        for pod in pods:
            if question := questions.get(pod.uid):
                known = before.get(pod.uid)
                is_same = known is not None and known.question is question and known.pod.ip == pod.ip
                asked[pod.uid] = known if known and is_same else _Asked(key, pod, question)
        if asked:
            self._asked[key] = asked
            self._has_work.set()

    def reports_of(self, key: ServiceKey) -> dict[str, DrainReport]:
        """Return the last answers of a service's pods, by pod uid."""
        return {uid: one.report for uid, one in self._asked.get(key, {}).items()}

    async def run(self) -> None:
        """Ask until cancelled."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=MOST_AT_ONCE, force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            while True:
                await self._has_work.wait()
                waiting = [one for asked in self._asked.values() for one in asked.values() if _is_worth_asking(one)]
                if not self._asked:
                    self._has_work.clear()
                await asyncio.gather(*(self._ask(session, one) for one in waiting))
                await asyncio.sleep(self._poll_s)

    async def _ask(self, session: aiohttp.ClientSession, asked: _Asked) -> None:
        before = asked.report
        try:
            asked.report = await _answer(session, asked)
        except (aiohttp.ClientError, TimeoutError, OSError, ValidationError) as error:
            logger.debug("%s did not answer /%s: %s", asked.pod.name, asked.question, error)
            asked.report = DrainReport(before.is_draining, before.in_flight, unanswered=before.unanswered + 1)
        if asked.report != before and self._asked.get(asked.key, {}).get(asked.pod.uid) is asked:
            self._on_change(asked.key)


async def _answer(session: aiohttp.ClientSession, asked: _Asked) -> DrainReport:
    address = asked.pod.ip or ""
    host = f"[{address}]" if ":" in address else address
    base = f"http://{host}:{ADMIN_PORT}"
    if asked.question is Question.LOAD:
        async with session.get(f"{base}/capacity") as response:
            report = CapacityReport.model_validate_json(await response.read())
        return DrainReport(report.draining, report.in_flight, report.blocks_cached)
    async with session.post(f"{base}/{asked.question}") as response:
        answer = DrainAnswer.model_validate_json(await response.read())
    return DrainReport(answer.draining, answer.in_flight)


def _is_worth_asking(asked: _Asked) -> bool:
    """Tell whether an answer is missing. An engine is asked for its load until it was tried; to drain, all the time."""
    is_asked = asked.report.is_draining is not None or asked.report.unanswered > 0
    return asked.pod.ip is not None and not (asked.question is Question.LOAD and is_asked)
