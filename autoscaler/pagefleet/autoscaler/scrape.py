"""Ask every replica's admin port for its report, all at once and each with a deadline.

Of each replica the latest usable report is kept. One that gives none, or nonsense, keeps its old one, which ages:
unknown is never zero.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from pydantic import ValidationError

from pagefleet.api.capacity import CapacityReport
from pagefleet.autoscaler.capacity_connection import BadAnswer, CapacityConnection
from pagefleet.autoscaler.reading import UnusableReport, read_report
from pagefleet.autoscaler.snapshot import Reading

ADMIN_PORT = 9000
"""Of every engine pod; the operator and the engine have the same."""
MOST_CONNECTING = 64
"""Connections that are opened at once: after a start there is one to each replica."""

logger = logging.getLogger(__name__)


class Quality(StrEnum):
    """What is known of a replica's load."""

    FRESH = "fresh"
    """The last question was answered."""
    CARRIED = "carried"
    """The last question was not; this is what was said before."""
    MISSING = "missing"
    """Nothing usable was ever said."""


class Outcome(StrEnum):
    """How a question ended."""

    ANSWERED = "answered"
    LATE = "late"
    REFUSED = "refused"
    GARBAGE = "garbage"


@dataclass(frozen=True, slots=True)
class Target:
    """A replica to ask, and the objectives by which its latencies are counted."""

    uid: str
    address: str
    ttft_slo_s: float | None = None
    itl_slo_s: float | None = None


@dataclass(slots=True)
class Known:
    """What is known of one replica."""

    source: str
    """Address that was asked."""
    quality: Quality = Quality.MISSING
    report: CapacityReport | None = None
    """The latest usable one."""
    reading: Reading | None = None
    """What it says of the load; None while the engine starts."""
    read_s: float | None = None
    """When it was made."""
    fault: str | None = None
    """Why the last question had no use."""
    connection: CapacityConnection | None = None

    def age_s(self, now_s: float) -> float | None:
        """Return the age of the latest report."""
        return None if self.read_s is None else now_s - self.read_s


class Scraper:
    """Ask replicas; know the last report of each."""

    def __init__(self, *, clock: Callable[[], float], timeout_s: float, port: int = ADMIN_PORT) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._port = port
        self._known: dict[str, Known] = {}
        self._connecting = asyncio.Semaphore(MOST_CONNECTING)
        self.outcomes: Counter[Outcome] = Counter()
        """Questions since the start."""

    def known(self, uid: str) -> Known | None:
        """Return what is known of a replica, or None if it was never asked."""
        return self._known.get(uid)

    async def ask(self, targets: Iterable[Target]) -> None:
        """Ask all of them once, which takes no longer than the deadline; others are forgotten."""
        wanted = {target.uid: target for target in targets}
        for uid in [uid for uid in self._known if uid not in wanted]:
            self._drop_connection(self._known.pop(uid))
        asked = {asyncio.ensure_future(self._ask(target)): target for target in wanted.values()}
        if not asked:
            return
        # One deadline for all: a timer for each question would take as long as the question itself.
        _, late = await asyncio.wait(asked, timeout=self._timeout_s)
        for question in late:
            question.cancel()
        for question in late:
            known = self._known[asked[question].uid]
            self._drop_connection(known)
            self._fail(known, Outcome.LATE, f"no answer in {self._timeout_s:g} s")
        if late:
            await asyncio.wait(late)

    async def close(self) -> None:
        """Close all connections."""
        for known in self._known.values():
            self._drop_connection(known)
        await asyncio.sleep(0)  # they end in the next turn of the loop

    async def _ask(self, target: Target) -> None:
        known = self._known.get(target.uid)
        if known is None or known.source != target.address:
            if known is not None:
                self._drop_connection(known)
            known = self._known[target.uid] = Known(target.address)
        try:
            body = await self._body(known)
        except OSError as error:
            self._fail(known, Outcome.REFUSED, str(error) or type(error).__name__)
            return
        except BadAnswer as error:
            self._fail(known, Outcome.GARBAGE, str(error))
            return
        self._take(known, target, body)

    async def _body(self, known: Known) -> bytes:
        if known.connection is not None and known.connection.is_open:
            try:
                return await known.connection.ask()
            except ConnectionError:
                pass  # an engine closes what was quiet for long just when it is asked
        async with self._connecting:
            known.connection = await CapacityConnection.open(known.source, self._port)
        return await known.connection.ask()

    def _take(self, known: Known, target: Target, body: bytes) -> None:
        now_s = self._clock()
        try:
            report = CapacityReport.model_validate_json(body)
            if report.pod_uid is not None and report.pod_uid != target.uid:
                raise UnusableReport(f"the report is of pod {report.pod_uid}")
            reading = read_report(report, read_s=now_s, ttft_slo_s=target.ttft_slo_s, itl_slo_s=target.itl_slo_s)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            self._fail(known, Outcome.GARBAGE, f"{where}: {first['msg']}" if where else first["msg"])
            return
        except UnusableReport as error:
            self._fail(known, Outcome.GARBAGE, str(error))
            return
        known.quality, known.report, known.reading, known.read_s = Quality.FRESH, report, reading, now_s
        known.fault = None
        self.outcomes[Outcome.ANSWERED] += 1

    def _fail(self, known: Known, outcome: Outcome, fault: str) -> None:
        self.outcomes[outcome] += 1
        known.quality = Quality.MISSING if known.report is None else Quality.CARRIED
        if known.fault != fault:
            logger.info("%s gave no report: %s", known.source, fault)
        known.fault = fault

    @staticmethod
    def _drop_connection(known: Known) -> None:
        if known.connection is not None:
            known.connection.close()
            known.connection = None
