"""Which process acts: a Lease that one process holds and the others watch.

A follower trusts only its own clock: it takes over when it has seen no change of the Lease for the Lease's duration,
whatever times are written in it. The leader counts from when its last good request was sent, gives each request the
time that is left, and ends the process once it may have lost the lead: two leaders are worse than none.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from pagefleet.api.client import KubernetesClient
from pagefleet.api.client_errors import ApiError, Conflict
from pagefleet.api.resources import LEASES
from pagefleet.api.retry import NEVER

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Where the Lease is and how long it holds."""

    namespace: str
    identity: str
    """Unique to this process, such as the pod's name."""
    name: str = "pagefleet-operator"
    duration_s: float = 12.0
    """A dead leader is replaced after this time and one retry."""
    renew_deadline_s: float = 8.0
    """The leader gives up before anybody may take over."""
    retry_s: float = 2.0
    """Time between looks, and between renewals."""
    request_s: float = 5.0
    """Longest time of one request."""

    @classmethod
    def lasting(cls, duration_s: float, *, namespace: str, identity: str, name: str) -> Self:
        """Return times that fit a Lease which holds for so long."""
        return cls(
            namespace=namespace,
            identity=identity,
            name=name,
            duration_s=duration_s,
            renew_deadline_s=duration_s * 2 / 3,
            retry_s=min(2.0, duration_s / 5),
        )


class LeaderElection:
    """Acquire, keep and release one Lease."""

    def __init__(
        self,
        client: KubernetesClient,
        settings: LeaseSettings,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._now = now
        self._lease: dict[str, Any] | None = None
        self._seen_version: str | None = None
        self._seen_s = 0.0
        self._good_s = 0.0

    @property
    def is_leading(self) -> bool:
        """Tell whether the lead is ours, by our own clock."""
        return self._lease is not None and self._clock() - self._good_s < self._settings.renew_deadline_s

    async def acquire(self) -> None:
        """Wait until this process leads."""
        while not await self._try_acquire():  # noqa: ASYNC110 - it asks a server, there is no event to wait for
            await asyncio.sleep(self._settings.retry_s)
        logger.info("leading as %s", self._settings.identity)

    async def keep(self) -> None:
        """Renew until the lead is lost, then return."""
        while (left_s := self._settings.renew_deadline_s - (self._clock() - self._good_s)) > 0:
            await asyncio.sleep(min(self._settings.retry_s, left_s))
            try:
                await self._write(self._lease, timeout_s=max(0.1, left_s))
            except Conflict:
                if not await self._is_still_ours():
                    break
            except (ApiError, TimeoutError) as error:
                logger.warning("the lease could not be renewed: %s", error)
        self._lease = None
        logger.error("the lead is lost")

    async def release(self) -> None:
        """Give the lead back, so that another process takes over at once."""
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                await self._write(lease, timeout_s=self._settings.request_s, holder="")
            except (ApiError, TimeoutError) as error:
                logger.info("the lease was not released: %s", error)

    async def _is_still_ours(self) -> bool:
        """Read the Lease after a conflict: an answer that did not come in time may have been a success."""
        try:
            async with asyncio.timeout(self._settings.request_s):
                lease = await self._client.get(LEASES, self._settings.namespace, self._settings.name)
        except (ApiError, TimeoutError):
            return True  # the deadline decides
        if lease is None or (lease.get("spec") or {}).get("holderIdentity") != self._settings.identity:
            return False
        self._lease = lease
        return True

    async def _try_acquire(self) -> bool:
        settings = self._settings
        try:
            async with asyncio.timeout(settings.request_s):
                lease = await self._client.get(LEASES, settings.namespace, settings.name)
            if lease is not None and not self._is_free(lease):
                return False
            await self._write(lease, timeout_s=settings.request_s)
        except Conflict:
            return False
        except (ApiError, TimeoutError) as error:
            logger.warning("the lease could not be taken: %s", error)
            return False
        return True

    def _is_free(self, lease: dict[str, Any]) -> bool:
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen_version:
            self._seen_version, self._seen_s = version, self._clock()
        holder = (lease.get("spec") or {}).get("holderIdentity")
        is_dead = self._clock() - self._seen_s >= self._settings.duration_s
        return not holder or holder == self._settings.identity or is_dead

    async def _write(self, before: dict[str, Any] | None, *, timeout_s: float, holder: str | None = None) -> None:
        """Write the Lease: a PUT with the version that was read, so that one of several writers wins."""
        settings, sent_s = self._settings, self._clock()
        moment = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict((before or {}).get("spec") or {})
        is_new_holder = spec.get("holderIdentity") != settings.identity
        spec["holderIdentity"] = settings.identity if holder is None else holder
        spec["leaseDurationSeconds"] = round(settings.duration_s)
        spec["renewTime"] = moment
        if is_new_holder:
            spec["acquireTime"] = moment
            spec["leaseTransitions"] = spec.get("leaseTransitions", -1) + 1
        metadata = (before or {}).get("metadata") or {"name": settings.name, "namespace": settings.namespace}
        body = {"metadata": metadata, "spec": spec}
        write = self._client.create if before is None else self._client.replace
        async with asyncio.timeout(min(timeout_s, settings.request_s)):
            lease = await write(LEASES, body, retry=NEVER)
        if holder is None:
            self._lease, self._good_s = lease, sent_s


async def act_while_leading(
    work: Coroutine[Any, Any, None],
    election: LeaderElection,
    stopping: asyncio.Event,
    *,
    expected: tuple[type[Exception], ...] = (),
) -> bool:
    """Wait for the lead, then work until told to stop, the lead is lost or the work ends; tell whether it was told to.

    The lead is given back unless it was lost. The work's errors are logged; of expected ones and `ApiError` only what
    they say.
    """
    is_stopped = asyncio.ensure_future(stopping.wait())
    acquired = asyncio.ensure_future(election.acquire())
    await asyncio.wait({is_stopped, acquired}, return_when=asyncio.FIRST_COMPLETED)
    if not acquired.done():
        await _cancel([acquired, is_stopped], expected)
        work.close()
        return True
    keeping = asyncio.ensure_future(election.keep())
    acting = asyncio.ensure_future(work)
    await asyncio.wait({is_stopped, keeping, acting}, return_when=asyncio.FIRST_COMPLETED)
    was_asked = is_stopped.done()
    await _cancel([acting], expected)  # before anybody else may lead
    if not keeping.done():
        await _cancel([keeping], expected)
        await election.release()
    await _cancel([is_stopped], expected)
    return was_asked


async def _cancel(tasks: Sequence[asyncio.Future[Any]], expected: tuple[type[Exception], ...]) -> None:
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            is_told = isinstance(outcome, (ApiError, *expected))
            logger.error("stopped: %s", outcome, exc_info=None if is_told else outcome)
