"""Bring one service to where it should be: observe, plan, apply what differs, tell. Safe to repeat at any time."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from pagefleet.api.client import KubernetesClient
from pagefleet.api.client_errors import ApiError, Conflict, Invalid, NotFound
from pagefleet.api.installed_schema import InstalledSchema
from pagefleet.api.labels import OPERATOR_FIELD_MANAGER
from pagefleet.api.resources import (
    CONTROLLER_REVISIONS,
    INFERENCE_POOLS,
    INFERENCE_SERVICES,
    PODS,
    REPLICA_SETS,
    SERVICE_ACCOUNTS,
    SERVICE_MONITORS,
    Resource,
)
from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.operator.drains import DrainWatch
from pagefleet.operator.engines import EngineWatch
from pagefleet.operator.metrics import OperatorMetrics
from pagefleet.operator.models import ModelWatch
from pagefleet.operator.nodes import NodeWatch
from pagefleet.operator.plan.drain import PodChange
from pagefleet.operator.plan.intent import Intent
from pagefleet.operator.plan.invalid import invalid_status
from pagefleet.operator.plan.observed import ApplyFailure, Observed
from pagefleet.operator.plan.ownership import owns_all
from pagefleet.operator.plan.planner import Plan, plan
from pagefleet.operator.plan.settings import RenderSettings
from pagefleet.operator.store import ServiceEntry, ServiceKey, Store

JsonObject = dict[str, Any]

BUSY_STATUS_S = 2.0
"""Longest time that the first status of a service waits while others have no ReplicaSet yet."""
REFUSED_RECHECK_S = 300.0
"""Time after which a refused object is tried again: a quota or a policy of the cluster may have changed."""
MOST_POD_ROUNDS = 3
"""Writes to pods in one look: a drained pod is marked, then its ReplicaSet lowered."""
FIRST: frozenset[Resource] = frozenset({SERVICE_ACCOUNTS, CONTROLLER_REVISIONS, REPLICA_SETS})
"""What replicas need to start, sent at once: the API server waits for an account that is a moment late, and a revision
that a crash kept from being stored is rendered anew. The rest follows in a lane of its own."""

logger = logging.getLogger(__name__)


class NotApplied(Exception):
    """Say which objects could not be written for now."""


@dataclass(slots=True)
class _Refusals:
    """What the API server refused of one service, by object, with the hash of what was refused."""

    by_object: dict[tuple[str, str], tuple[str, ApplyFailure, float]] = field(default_factory=dict)

    def failures(self) -> tuple[ApplyFailure, ...]:
        return tuple(failure for _, failure, _ in self.by_object.values())


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What is true of the whole cluster."""

    schema: InstalledSchema = field(default_factory=InstalledSchema)
    optional: frozenset[Resource] = frozenset()
    """Kinds of other projects that the cluster has."""


class Reconciler:
    """Reconcile services by key. One for a process; keys run side by side, one key never twice at once."""

    def __init__(
        self,
        client: KubernetesClient,
        store: Store,
        settings: RenderSettings,
        *,
        engines: EngineWatch,
        drains: DrainWatch,
        nodes: NodeWatch,
        models: ModelWatch,
        metrics: OperatorMetrics,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        request_rest: Callable[[ServiceKey], None],
        on_refusal: Callable[[ServiceKey], None],
        is_busy: Callable[[], bool],
    ) -> None:
        self._client = client
        self._store = store
        self._settings = settings
        self._engines = engines
        self._drains = drains
        self._nodes = nodes
        self._models = models
        self._metrics = metrics
        self._now = now
        self._clock = clock
        self._request_rest = request_rest
        self._on_refusal = on_refusal
        self._is_busy = is_busy
        self._rest: dict[ServiceKey, tuple[InferenceService, list[Intent]]] = {}
        """What the lane has to apply, as last planned."""
        self._refusals: dict[ServiceKey, _Refusals] = {}
        self.facts = ClusterFacts()

    async def reconcile(self, key: ServiceKey) -> float | None:
        """Bring a service to its plan; return when to look again. Raises `NotApplied` to be tried again later."""
        entry = self._store.find(key)
        if entry is None or entry.text is None:
            self._refusals.pop(key, None)
            self._rest.pop(key, None)
            self._models.forget(key)
            self._drains.follow(key, {}, ())
            self._metrics.forget_service(*key)
            return None
        if entry.needs_proof and not await self._still_exists(key, entry):
            return None
        raw = json.loads(entry.text)
        if "deletionTimestamp" in raw["metadata"]:
            self._drains.follow(key, {}, ())
            return None  # the garbage collector has the rest
        try:
            service = InferenceService.from_manifest(raw)
        except ValidationError as error:
            await self._write_status(key, raw, invalid_status(raw, error, self._now()))
            return None
        planned = await self._settle_pods(key, entry, service)
        failures = await self._apply(key, entry, service, planned)
        self._tell_departures(key, entry, planned)
        for removal in planned.removals:
            await self._remove(removal.resource, key, removal.name, removal.uid)
        if failures:
            planned = self._plan(key, entry, service)
        elif not entry.pods and service.status.phase is None and self._is_busy():
            return BUSY_STATUS_S  # with the news of its pods, most likely
        await self._write_status(key, raw, planned.status.to_manifest())
        if passing := [str(one.message) for one in failures if not one.is_invalid]:
            raise NotApplied("; ".join(passing))
        return REFUSED_RECHECK_S if failures else planned.requeue_after_s

    async def _still_exists(self, key: ServiceKey, entry: ServiceEntry) -> bool:
        """Ask the API server: making the objects of a deleted service anew would leave them to be collected again."""
        entry.needs_proof = False
        found = await self._client.list(INFERENCE_SERVICES, key.namespace, field_selector=f"metadata.name={key.name}")
        if found.items and found.items[0]["metadata"]["uid"] == entry.uid:
            return True
        self._store.forget_service(key)
        for item in found.items:  # made anew meanwhile
            self._store.put(INFERENCE_SERVICES, item)
        return bool(found.items)

    async def apply_rest(self, key: ServiceKey) -> float | None:
        """Apply what no replica waits for; return when to look again. Raises `NotApplied` to be tried again later."""
        entry = self._store.find(key)
        service, intents = self._rest.pop(key, (None, []))
        if entry is None or service is None or service.metadata.uid != entry.uid:
            return None
        before = self._failures(key)
        results = await asyncio.gather(*(self._apply_one(key, entry, service, one) for one in intents))
        failures = [one for one in results if one]
        if self._failures(key) != before:
            self._on_refusal(key)
        if passing := [str(one.message) for one in failures if not one.is_invalid]:
            self._rest.setdefault(key, (service, intents))
            raise NotApplied("; ".join(passing))
        return REFUSED_RECHECK_S if failures else None

    def _plan(self, key: ServiceKey, entry: ServiceEntry, service: InferenceService) -> Plan:
        pods = tuple(entry.pods[name] for name in sorted(entry.pods))
        reports = ((pod.uid, self._engines.progress_of(pod.uid)) for pod in pods)
        observed = Observed(
            children=entry.children,
            replica_sets=tuple(entry.replica_sets.values()),
            pods=pods,
            revisions=tuple(entry.revisions.values()),
            progress={uid: report for uid, report in reports if report is not None},
            drains=self._drains.reports_of(key),
            accelerators=self._nodes.accelerators_of(service.spec.accelerator.resource),
            model=self._models.knowledge_of(key, service.spec.model),
            failures=self._failures(key),
            has_service_monitors=SERVICE_MONITORS in self.facts.optional,
            has_inference_pools=INFERENCE_POOLS in self.facts.optional,
        )
        planned = plan(service, observed, self._settings, self._now())
        self._metrics.observe_plan(*key, planned.status.plan)
        self._metrics.observe_replicas(
            *key,
            wanted=service.spec.replicas,
            ready=planned.status.ready_replicas or 0,
            draining=planned.drain.draining,
        )
        return planned

    async def _settle_pods(self, key: ServiceKey, entry: ServiceEntry, service: InferenceService) -> Plan:
        """Write on pods what a plan wants there, and plan with the answers: only what the pod list shows is counted on.

        Raises `NotApplied` where that can't be written for now.
        """
        planned = self._plan(key, entry, service)
        for _ in range(MOST_POD_ROUNDS):
            if not planned.drain.changes:
                break
            await asyncio.gather(*(self._change_pod(key, change) for change in planned.drain.changes))
            planned = self._plan(key, entry, service)
        self._drains.follow(key, planned.drain.questions, entry.pods.values())
        return planned

    async def _change_pod(self, key: ServiceKey, change: PodChange) -> None:
        metadata = {"uid": change.uid, "labels": dict(change.labels), "annotations": dict(change.annotations)}
        try:
            answer = await self._client.patch_merge(
                PODS, key.namespace, change.pod, {"metadata": metadata}, field_manager=OPERATOR_FIELD_MANAGER
            )
        except (Conflict, NotFound):
            return  # gone, or a namesake has taken its place: its event comes
        except ApiError as error:
            raise NotApplied(f"pod {change.pod} can't be labelled: {error}") from error
        self._metrics.writes.labels(PODS.kind).inc()
        if change.outcome:
            self._metrics.drains.labels(change.outcome).inc()
        self._store.put(PODS, answer)

    def _tell_departures(self, key: ServiceKey, entry: ServiceEntry, planned: Plan) -> None:
        """Count and log the replicas that leave, once their ReplicaSets want fewer."""
        present = {one.revision: one.replicas for one in entry.replica_sets.values()}
        for one in planned.drain.departures:
            if present.get(one.revision) == planned.drain.replicas[one.revision]:
                self._metrics.drains.labels(one.outcome).inc()
                logger.info("%s: replica %s leaves: %s", key, one.pod, one.reason)

    async def _apply(
        self, key: ServiceKey, entry: ServiceEntry, service: InferenceService, planned: Plan
    ) -> list[ApplyFailure]:
        """Apply what differs of what replicas need, and have the lane do the rest; return what was refused."""
        self._forget_refusals(key, planned.objects)
        todo = [one for one in planned.objects if _differs(entry, service, one)]
        results = await asyncio.gather(
            *(self._apply_one(key, entry, service, one) for one in todo if one.resource in FIRST)
        )
        failures = [one for one in results if one]
        rest = [one for one in todo if one.resource not in FIRST and not self._known_refusal(key, one)]
        self._rest.pop(key, None)
        if rest and not failures:
            self._rest[key] = service, rest
            self._request_rest(key)
        return failures

    async def _apply_one(
        self, key: ServiceKey, entry: ServiceEntry, service: InferenceService, intent: Intent
    ) -> ApplyFailure | None:
        """Apply an object; return what the API server has against it."""
        if not _differs(entry, service, intent):
            return None
        if known := self._known_refusal(key, intent):
            return known
        refusals = self._refusals.setdefault(key, _Refusals())
        try:
            # By force only over what is known to be ours: a namesake of somebody else's is not taken over.
            is_ours = intent.id in entry.children
            answer = await self._client.apply(intent.resource, intent.body, OPERATOR_FIELD_MANAGER, force=is_ours)
        except ApiError as error:
            failure = _failure(intent, error)
            logger.info("%s: %s %s was refused: %s", key, intent.resource.kind, intent.name, error)
            refusals.by_object[intent.id] = (intent.hash, failure, self._clock())
            return failure
        self._metrics.writes.labels(intent.resource.kind).inc()
        refusals.by_object.pop(intent.id, None)
        self._store.put(intent.resource, answer)
        return None

    def _known_refusal(self, key: ServiceKey, intent: Intent) -> ApplyFailure | None:
        """Return what the API server had against just this intent, while there is no sense in asking again."""
        refusals = self._refusals.get(key)
        known = refusals.by_object.get(intent.id) if refusals else None
        if known and known[1].is_invalid and known[0] == intent.hash and self._clock() - known[2] < REFUSED_RECHECK_S:
            return known[1]
        return None

    def _failures(self, key: ServiceKey) -> tuple[ApplyFailure, ...]:
        refusals = self._refusals.get(key)
        return refusals.failures() if refusals else ()

    def _forget_refusals(self, key: ServiceKey, objects: Iterable[Intent]) -> None:
        """Forget refusals of what is no longer wanted."""
        refusals = self._refusals.get(key)
        if refusals:
            wanted = {one.id: one.hash for one in objects}
            refusals.by_object = {
                place: known for place, known in refusals.by_object.items() if wanted.get(place) == known[0]
            }

    async def _remove(self, resource: Resource, key: ServiceKey, name: str, uid: str) -> None:
        try:
            await self._client.delete(resource, key.namespace, name, uid=uid)
        except Conflict:
            return  # a namesake has taken its place; its event comes
        self._metrics.writes.labels(resource.kind).inc()

    async def _write_status(self, key: ServiceKey, raw: JsonObject, status: JsonObject) -> None:
        """Write a status that differs from the newest known one; the autoscaler's part is not ours."""
        status = self.facts.schema.prune({name: part for name, part in status.items() if name != "autoscaling"})
        entry = self._store.find(key)
        newest = json.loads(entry.text) if entry and entry.text else raw
        present = {name: part for name, part in (newest.get("status") or {}).items() if name != "autoscaling"}
        if present == status or newest["metadata"]["uid"] != raw["metadata"]["uid"]:
            return
        metadata = {"name": key.name, "namespace": key.namespace, "uid": raw["metadata"]["uid"]}
        try:
            answer = await self._client.apply(
                INFERENCE_SERVICES,
                {"metadata": metadata, "status": status},
                OPERATOR_FIELD_MANAGER,
                subresource="status",
            )
        except (Conflict, NotFound):
            return  # deleted, or made anew: its event comes
        self._metrics.writes.labels(INFERENCE_SERVICES.kind).inc()
        self._store.put(INFERENCE_SERVICES, answer)


def _differs(entry: ServiceEntry, service: InferenceService, intent: Intent) -> bool:
    """Tell whether an object is missing, was applied otherwise, or was edited since."""
    child = entry.children.get(intent.id)
    if child is None:
        return True
    if child.is_terminating:
        return False  # its deletion comes first
    is_owned = service.metadata.uid in child.owner_uids
    return child.intent_hash != intent.hash or not is_owned or not owns_all(child.owned_fields, intent.body)


def _failure(intent: Intent, error: ApiError) -> ApplyFailure:
    kind, name = intent.id
    if isinstance(error, Conflict):
        message = f"{kind} {name} exists and is somebody else's ({error.message}); delete it, or rename the service"
        return ApplyFailure(kind, name, is_invalid=True, message=message)
    return ApplyFailure(kind, name, is_invalid=isinstance(error, Invalid), message=error.message)
