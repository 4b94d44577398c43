"""Keep the store as the cluster is: list a kind, then watch it, and list again when the server has forgotten."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

from pagefleet.api.client import KubernetesClient, Object
from pagefleet.api.client_errors import ApiError
from pagefleet.api.resources import Resource

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
"""Bound of the pauses after failures, doubled from one to the next."""
GONE = 410

logger = logging.getLogger(__name__)


class Watch:
    """Follow one kind in one namespace, or in all."""

    def __init__(
        self,
        client: KubernetesClient,
        resource: Resource,
        namespace: str | None,
        label_selector: str | None,
        *,
        put: Callable[[Object], None],
        drop: Callable[[Object], None],
        keep_only: Callable[[str | None, set[str]], None],
        dice: Callable[[], float],
    ) -> None:
        """Tell `put` and `drop` of objects, and `keep_only` the uids of a complete list of a namespace."""
        self._client = client
        self._resource, self._namespace, self._selector = resource, namespace, label_selector
        self._put, self._drop, self._keep_only = put, drop, keep_only
        self._dice = dice
        self._version: str | None = None
        self.is_filled = asyncio.Event()
        """Set after the first complete list."""
        self.is_current = False
        """Whether a list or a watch succeeded last."""

    async def run(self) -> None:
        """Follow until cancelled."""
        failures = 0
        while True:
            try:
                await self._follow(self._version or await self._list())
                failures = 0
            except ApiError as error:
                if error.status == GONE:
                    self._version = None
                    continue
                self.is_current = False
                failures += 1
                pause_s = min(FIRST_PAUSE_S * 2.0 ** (failures - 1), LONGEST_PAUSE_S) * (0.5 + 0.5 * self._dice())
                logger.warning("%s can't be watched, again in %.1f s: %s", self._resource.plural, pause_s, error)
                await asyncio.sleep(pause_s)

    async def _list(self) -> str:
        uids: set[str] = set()
        async for page in self._client.pages(self._resource, self._namespace, self._selector):
            for item in page.items:
                uids.add(item["metadata"]["uid"])
                self._put(item)
        self._keep_only(self._namespace, uids)
        self._version = page.resource_version
        self.is_current = True
        self.is_filled.set()
        return page.resource_version

    async def _follow(self, version: str) -> None:
        events = self._client.watch(self._resource, self._namespace, self._selector, resource_version=version)
        async with aclosing(events):
            async for event in events:
                self.is_current = True
                self._version = event.item["metadata"]["resourceVersion"]
                if event.kind == "DELETED":
                    self._drop(event.item)
                elif event.kind != "BOOKMARK":
                    self._put(event.item)
        self.is_current = True
