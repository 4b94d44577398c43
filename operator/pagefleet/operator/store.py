"""The operator's picture of the cluster: slim records of its objects by service, kept by lists, events and own writes.

Own lists fill it before the first reconcile and sweep it later: an event stream that broke reports no deletion of what
vanished meanwhile. The answer to each own write is the newest observation, before its event arrives.
"""

import json
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pagefleet.api.labels import ADOPT_TEMPLATE_ANNOTATION, SERVICE_LABEL
from pagefleet.api.resources import (
    CONTROLLER_REVISIONS,
    INFERENCE_POOLS,
    INFERENCE_SERVICES,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    REPLICA_SETS,
    SERVICE_ACCOUNTS,
    SERVICE_MONITORS,
    SERVICES,
    Resource,
)
from pagefleet.operator.plan.controller_revision import read_controller_revision
from pagefleet.operator.plan.observed import Child, PodRecord, ReplicaSetRecord, RevisionRecord
from pagefleet.operator.records import read_child, read_pod, read_replica_set

JsonObject = dict[str, Any]
Record = Child | ReplicaSetRecord | PodRecord | RevisionRecord

CHILD_RESOURCES: tuple[Resource, ...] = (
    REPLICA_SETS,
    PODS,
    SERVICES,
    CONTROLLER_REVISIONS,
    POD_DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    SERVICE_ACCOUNTS,
)
"""Kinds that every service has, all labelled with its name."""
OPTIONAL_RESOURCES: tuple[Resource, ...] = (SERVICE_MONITORS, INFERENCE_POOLS)
"""Kinds of other projects, of clusters that have them."""


MOST_GONE = 10_000
"""Deletions that are remembered."""


class ServiceKey(NamedTuple):
    """The identity of a service by name: what the queue holds."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(slots=True)
class ServiceEntry:
    """All that is known of one service."""

    text: str | None = None
    """The InferenceService as compact JSON without managed fields; None while only children are known."""
    uid: str = ""
    spec_mark: tuple[Any, ...] = ()
    """What of the service can change a plan: an event with an equal mark is an echo of our own status."""
    needs_proof: bool = False
    """An object of it was deleted: by hand, or because the service is gone and its event still on the way."""
    versions: dict[tuple[str, str], int] = field(default_factory=dict)
    """Newest resourceVersion by kind and name."""
    children: dict[tuple[str, str], Child] = field(default_factory=dict)
    replica_sets: dict[str, ReplicaSetRecord] = field(default_factory=dict)
    pods: dict[str, PodRecord] = field(default_factory=dict)
    revisions: dict[str, RevisionRecord] = field(default_factory=dict)


class Store:
    """Hold the records. `on_pod` hears of every pod that is new, changed or gone."""

    def __init__(self, on_pod: Callable[[ServiceKey, PodRecord, bool], None] = lambda _k, _p, _gone: None) -> None:
        self._entries: dict[ServiceKey, ServiceEntry] = {}
        self._gone: dict[tuple[ServiceKey, tuple[str, str]], int] = {}
        """Versions at which objects were deleted: the answer to a write may come after the deletion."""
        self._on_pod = on_pod

    def __len__(self) -> int:
        return sum(entry.text is not None for entry in self._entries.values())

    def services(self) -> list[ServiceKey]:
        """Return the services that exist."""
        return [key for key, entry in self._entries.items() if entry.text is not None]

    def find(self, key: ServiceKey) -> ServiceEntry | None:
        """Return what is known of a service, or None where it does not exist."""
        entry = self._entries.get(key)
        return entry if entry and entry.text is not None else None

    def _is_stale(self, key: ServiceKey, place: tuple[str, str], version: int) -> bool:
        """Tell whether something newer is known: a later version, or that the object was deleted after this one."""
        known = self._entries[key].versions.get(place, -1) if key in self._entries else -1
        return version <= max(known, self._gone.get((key, place), -1))

    def put(self, resource: Resource, item: JsonObject) -> ServiceKey | None:
        """Take an object that was listed, seen in an event or answered to a write.

        Returns the service to look at, or None where this changes nothing: older than known, or our own echo.
        """
        key = service_key(resource, item)
        if key is None:
            return None
        metadata = item["metadata"]
        place, version = (resource.kind, metadata["name"]), int(metadata["resourceVersion"])
        if self._is_stale(key, place, version):
            return None
        entry = self._entries.setdefault(key, ServiceEntry())
        is_known = place in entry.versions
        entry.versions[place] = version
        if resource is INFERENCE_SERVICES:
            return key if self._put_service(entry, item) else None
        before = _record(entry, place)
        self._put_child(key, entry, resource, item)
        return key if not is_known or _record(entry, place) != before else None

    def drop(self, resource: Resource, item: JsonObject) -> ServiceKey | None:
        """Forget an object that was deleted; returns the service to look at."""
        key = service_key(resource, item)
        if key is None:
            return None
        metadata = item["metadata"]
        place, version = (resource.kind, metadata["name"]), int(metadata["resourceVersion"])
        if self._is_stale(key, place, version - 1):
            return None  # a namesake has taken its place
        self._gone[key, place] = version
        if len(self._gone) > MOST_GONE:
            del self._gone[next(iter(self._gone))]
        if place not in self._entries.get(key, ServiceEntry()).versions:
            return None
        self._forget(key, place)
        if resource not in (INFERENCE_SERVICES, PODS) and key in self._entries:
            self._entries[key].needs_proof = True
        return key

    def forget_service(self, key: ServiceKey) -> None:
        """Forget a service that was found to be gone; its event is on the way, or was missed."""
        if key in self._entries:
            self._forget(key, (INFERENCE_SERVICES.kind, key.name))

    def forget_missing(self, resource: Resource, present: Set[tuple[ServiceKey, str]], version: int) -> set[ServiceKey]:
        """Drop the objects of a kind that a complete list lacks; returns the services that this changes.

        `version` is the list's: what is newer than it was written after the list was made, and stays.
        """
        changed: set[ServiceKey] = set()
        for key, entry in list(self._entries.items()):
            for place, known in list(entry.versions.items()):
                if place[0] == resource.kind and (key, place[1]) not in present and known <= version:
                    self._forget(key, place)
                    changed.add(key)
        return changed

    def _put_service(self, entry: ServiceEntry, item: JsonObject) -> bool:
        metadata = {name: value for name, value in item["metadata"].items() if name != "managedFields"}
        entry.text = json.dumps({**item, "metadata": metadata}, separators=(",", ":"))
        mark = (
            metadata["uid"],
            metadata.get("generation"),
            metadata.get("deletionTimestamp"),
            (metadata.get("annotations") or {}).get(ADOPT_TEMPLATE_ANNOTATION),
        )
        is_changed = mark != entry.spec_mark
        entry.uid, entry.spec_mark = metadata["uid"], mark
        return is_changed

    def _put_child(self, key: ServiceKey, entry: ServiceEntry, resource: Resource, item: JsonObject) -> None:
        name = item["metadata"]["name"]
        if resource is PODS:
            pod = entry.pods[name] = read_pod(item)
            self._on_pod(key, pod, False)
            return
        entry.children[resource.kind, name] = read_child(resource.kind, item)
        if resource is REPLICA_SETS:
            entry.replica_sets[name] = read_replica_set(item)
        elif resource is CONTROLLER_REVISIONS and (revision := read_controller_revision(item)):
            entry.revisions[name] = revision

    def _forget(self, key: ServiceKey, place: tuple[str, str]) -> None:
        entry = self._entries[key]
        entry.versions.pop(place, None)
        kind, name = place
        if kind == INFERENCE_SERVICES.kind:
            entry.text, entry.uid, entry.spec_mark = None, "", ()
        elif kind == PODS.kind and (pod := entry.pods.pop(name, None)):
            self._on_pod(key, pod, True)
        entry.children.pop(place, None)
        if kind == REPLICA_SETS.kind:
            entry.replica_sets.pop(name, None)
        elif kind == CONTROLLER_REVISIONS.kind:
            entry.revisions.pop(name, None)
        if not entry.versions:
            del self._entries[key]


def service_key(resource: Resource, item: JsonObject) -> ServiceKey | None:
    """Return the service that an object is or belongs to; None for strangers."""
    metadata = item["metadata"]
    if resource is INFERENCE_SERVICES:
        return ServiceKey(metadata["namespace"], metadata["name"])
    name = (metadata.get("labels") or {}).get(SERVICE_LABEL)
    return ServiceKey(metadata["namespace"], name) if name else None


def _record(entry: ServiceEntry, place: tuple[str, str]) -> tuple[Record | None, ...]:
    kind, name = place
    if kind == PODS.kind:
        return (entry.pods.get(name),)
    return entry.children.get(place), entry.replica_sets.get(name) if kind == REPLICA_SETS.kind else None
