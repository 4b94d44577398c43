"""The leader's machinery: store, queues and loops, put together. What to do is in `plan`, how in `reconcile`."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from pagefleet.api.client import KubernetesClient
from pagefleet.api.client_errors import ApiError, NotFound
from pagefleet.api.installed_schema import InstalledSchema
from pagefleet.api.labels import SERVICE_LABEL
from pagefleet.api.resources import INFERENCE_SERVICES, Resource
from pagefleet.operator.drains import DrainWatch
from pagefleet.operator.engines import EngineWatch
from pagefleet.operator.metrics import OperatorMetrics
from pagefleet.operator.models import ModelWatch
from pagefleet.operator.nodes import NodeWatch
from pagefleet.operator.plan.observed import PodRecord
from pagefleet.operator.queue import WorkQueue
from pagefleet.operator.reconcile import ClusterFacts, Reconciler
from pagefleet.operator.settings import OperatorSettings
from pagefleet.operator.store import CHILD_RESOURCES, OPTIONAL_RESOURCES, ServiceKey, Store, service_key

JsonObject = dict[str, Any]

RESYNC_SPREAD_S = 30.0
"""A resync looks at services one after another over this time instead of all at once."""
LISTS_AT_ONCE = 2
"""One is read while the other is on its way; pages of all kinds at once would be most of the process's memory."""
BUSY_COALESCE = 4
"""How much longer events of children are collected while all workers are busy."""

logger = logging.getLogger(__name__)


class Controller:
    """Everything between events and writes."""

    def __init__(
        self,
        client: KubernetesClient,
        settings: OperatorSettings,
        metrics: OperatorMetrics,
        *,
        dice: Callable[[], float],
    ) -> None:
        self._client = client
        self._settings = settings
        self._metrics = metrics
        self._dice = dice
        self._engines = EngineWatch(
            clock=time.monotonic, on_change=lambda key: self._queue.add(key), poll_s=settings.engine_poll_s
        )
        self._drains = DrainWatch(on_change=lambda key: self._queue.add(key))
        self._nodes = NodeWatch(client, poll_s=settings.node_poll_s, on_change=self._look_at_all)
        self._models = ModelWatch(settings.hub, clock=time.monotonic, on_change=lambda key: self._queue.add(key))
        self.store = Store(on_pod=self._on_pod)
        self.reconciler = Reconciler(
            client,
            self.store,
            settings.render,
            engines=self._engines,
            drains=self._drains,
            nodes=self._nodes,
            models=self._models,
            metrics=metrics,
            now=lambda: datetime.now(UTC),
            clock=time.monotonic,
            request_rest=lambda key: self._lane.add(key),
            on_refusal=lambda key: self._queue.add(key),  # it belongs into the status
            is_busy=lambda: self._queue.is_full,
        )
        self._queue: WorkQueue[ServiceKey] = WorkQueue(
            self.reconciler.reconcile,
            workers=settings.workers,
            clock=time.monotonic,
            dice=dice,
            on_done=metrics.observe_reconcile,
        )
        self._lane: WorkQueue[ServiceKey] = WorkQueue(
            self.reconciler.apply_rest, workers=settings.rest_workers, clock=time.monotonic, dice=dice
        )
        self._relisted = asyncio.Event()

    @property
    def resources(self) -> tuple[Resource, ...]:
        """Kinds to watch: services and all that belongs to them."""
        optional = [one for one in OPTIONAL_RESOURCES if one in self.reconciler.facts.optional]
        return (INFERENCE_SERVICES, *CHILD_RESOURCES, *optional)

    @property
    def oldest_s(self) -> float:
        """Seconds that the most neglected service has waited."""
        return max(self._queue.oldest_s, self._lane.oldest_s)

    def facts_with(self, schema: InstalledSchema) -> ClusterFacts:
        """Return the facts with the schema that the cluster has."""
        self._metrics.schema_is_current.set(schema.is_current)
        return ClusterFacts(schema=schema, optional=self.reconciler.facts.optional)

    async def prime(self) -> None:
        """Fill the store, so that the first look sees the whole world."""
        began_s = time.monotonic()
        served = await asyncio.gather(*(self._client.serves(one) for one in OPTIONAL_RESOURCES))
        optional = frozenset(one for one, is_served in zip(OPTIONAL_RESOURCES, served, strict=True) if is_served)
        self.reconciler.facts = ClusterFacts(self.reconciler.facts.schema, optional)
        lists = asyncio.Semaphore(LISTS_AT_ONCE)

        async def take(resource: Resource) -> None:
            async with lists:
                await self._list(resource)

        await asyncio.gather(self._nodes.look(), *(take(one) for one in self.resources))
        for key in self.store.services():
            self._queue.add(key)
        logger.info("%d services listed in %.2f s", len(self.store), time.monotonic() - began_s)

    async def first_pass(self, longest_s: float) -> None:
        """Wait until every listed service was looked at, or for a time."""
        began_s = time.monotonic()
        while not self._queue.is_idle and time.monotonic() - began_s < longest_s:  # noqa: ASYNC110 - once, at start
            await asyncio.sleep(0.02)
        logger.info("first pass after %.2f s", time.monotonic() - began_s)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for work in (
                self._queue.run(),
                self._lane.run(),
                self._engines.run(),
                self._drains.run(),
                self._nodes.run(),
                self._models.run(),
                self._resync(),
                self._measure_lag(),
            ):
                group.create_task(work)

    def on_event(self, resource: Resource, kind: str | None, item: JsonObject) -> None:
        """Take an event of a watch. Kind None is kopf's own list: what vanished before it has no event."""
        if kind is None:
            self._relisted.set()
        key = self.store.drop(resource, item) if kind == "DELETED" else self.store.put(resource, item)
        if key is not None:
            self._queue.add(key, 0.0 if resource is INFERENCE_SERVICES else self._coalesce_s())

    def refresh_metrics(self, *, is_leading: bool) -> None:
        """Set the gauges."""
        self._metrics.leading.set(is_leading)
        self._metrics.services.set(len(self.store))
        self._metrics.queue_depth.set(len(self._queue) + len(self._lane))
        self._metrics.queue_age_s.set(self.oldest_s)

    def _coalesce_s(self) -> float:
        """Collect for longer while all workers are busy: new services go before news of those that have replicas."""
        return self._settings.coalesce_s * (BUSY_COALESCE if self._queue.is_full else 1)

    def _on_pod(self, key: ServiceKey, pod: PodRecord, is_gone: bool) -> None:
        self._engines.update(key, pod, is_gone)

    def _look_at_all(self) -> None:
        for key in self.store.services():
            self._queue.add(key, self._dice() * RESYNC_SPREAD_S)

    async def _list(self, resource: Resource) -> None:
        selector = None if resource is INFERENCE_SERVICES else SERVICE_LABEL
        present: set[tuple[ServiceKey, str]] = set()
        version: int | None = None
        for namespace in self._settings.namespaces or (None,):
            try:
                taken = await self._take_list(resource, namespace, selector, present)
            except NotFound:
                return  # the kind is gone; so are its objects
            version = taken if version is None else min(version, taken)
        for key in self.store.forget_missing(resource, present, version or 0):
            self._queue.add(key)

    async def _take_list(
        self, resource: Resource, namespace: str | None, selector: str | None, present: set[tuple[ServiceKey, str]]
    ) -> int:
        """Take a list page by page, never held as a whole, add what it has to `present` and return its version."""
        while True:
            version = 0
            try:
                async for page in self._client.pages(resource, namespace, selector):
                    version = int(page.resource_version)
                    self._take_page(resource, page.items, present)
            except ApiError as error:
                if error.status != 410 or not version:
                    raise
                continue  # the server forgot the list's moment: from the beginning
            return version

    def _take_page(self, resource: Resource, items: Iterable[JsonObject], present: set[tuple[ServiceKey, str]]) -> None:
        for item in items:
            if (owner := service_key(resource, item)) is not None:
                present.add((owner, item["metadata"]["name"]))
            if (key := self.store.put(resource, item)) is not None:
                self._queue.add(key)

    async def _resync(self) -> None:
        """List everything from time to time, and once kopf's own lists are over."""
        while True:
            is_full = False
            try:
                async with asyncio.timeout(self._settings.resync_s):
                    await self._relisted.wait()
                    while self._relisted.is_set():
                        self._relisted.clear()
                        await asyncio.sleep(self._settings.sweep_delay_s)
            except TimeoutError:
                is_full = True
            self._relisted.clear()
            for resource in self.resources:
                await self._list(resource)
            if is_full:
                self._look_at_all()

    async def _measure_lag(self) -> None:
        worst: list[float] = []
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(0.25)
            worst = [*worst, time.monotonic() - began_s - 0.25][-60:]
            self._metrics.loop_lag_s.set(max(worst))
