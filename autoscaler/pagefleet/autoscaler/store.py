"""The autoscaler's picture of the cluster: services and their engine pods, kept by lists, events and own writes."""

import logging
from collections.abc import Iterable
from dataclasses import replace

from pydantic import ValidationError

from pagefleet.api.client import Object
from pagefleet.api.labels import AUTOSCALER_FIELD_MANAGER
from pagefleet.autoscaler.records import PodRecord, ReplicasWriter, ServiceKey, ServiceRecord, read_pod, read_service
from pagefleet.autoscaler.snapshot import Reading, Replica, ReplicaPhase

logger = logging.getLogger(__name__)


class Store:
    """Hold the newest record of each object. Versions of one cluster are numbers that rise."""

    def __init__(self) -> None:
        self._services: dict[str, ServiceRecord] = {}
        self._pods: dict[str, PodRecord] = {}
        self._by_service: dict[ServiceKey, dict[str, PodRecord]] = {}
        self._first_ready_s: dict[str, float | None] = {}
        """When a pod first became ready; None for one that was ready when it was first seen, perhaps not for the
        first time: an engine that drains or hangs is not ready for a while."""
        self._unreadable: dict[str, str] = {}

    def services(self) -> list[ServiceRecord]:
        """Return the services that exist."""
        return [record for record in self._services.values() if not record.is_terminating]

    def service(self, uid: str) -> ServiceRecord | None:
        """Return a service by identity."""
        return self._services.get(uid)

    def pods(self, key: ServiceKey) -> list[PodRecord]:
        """Return the engine pods of a service."""
        return list(self._by_service.get(key, {}).values())

    def put_service(self, item: Object) -> None:
        """Take an InferenceService that was listed, seen in an event or answered to a write."""
        uid, version = item["metadata"]["uid"], item["metadata"]["resourceVersion"]
        known = self._services.get(uid)
        if known is not None and int(version) <= int(known.version):
            return
        try:
            self._services[uid] = read_service(item)
        except ValidationError as error:  # one of a newer version; what was known of it no longer holds
            self._services.pop(uid, None)
            what = f"{error.errors(include_url=False)[0]['loc']}: {error.errors(include_url=False)[0]['msg']}"
            if self._unreadable.get(uid) != what:
                self._unreadable[uid] = what
                logger.error(
                    "%s/%s is not scaled, it can't be read: %s",
                    item["metadata"]["namespace"],
                    item["metadata"]["name"],
                    what,
                )

    def put_replicas(self, uid: str, replicas: int, version: str) -> None:
        """Take the number that was just written: its event comes later."""
        known = self._services.get(uid)
        if known is None or int(version) <= int(known.version):
            return
        spec = known.service.spec.model_copy(update={"replicas": replicas})
        service = known.service.model_copy(update={"spec": spec})
        writer = ReplicasWriter(manager=AUTOSCALER_FIELD_MANAGER, time=None, is_autoscaler=True)
        self._services[uid] = replace(
            known, service=service, version=version, generation=known.generation + 1, replicas_writer=writer
        )

    def drop_service(self, item: Object) -> None:
        """Forget an InferenceService that was deleted."""
        self._services.pop(item["metadata"]["uid"], None)
        self._unreadable.pop(item["metadata"]["uid"], None)

    def keep_services(self, namespace: str | None, uids: set[str]) -> None:
        """Forget the services of a namespace that a complete list lacks."""
        for uid, record in list(self._services.items()):
            if uid not in uids and namespace in (None, record.key.namespace):
                del self._services[uid]

    def put_pod(self, item: Object) -> None:
        """Take a pod that was listed or seen in an event."""
        pod = read_pod(item)
        uid = item["metadata"]["uid"]
        if pod is None:
            self._forget_pod(uid)
            return
        is_new = uid not in self._pods
        self._pods[uid] = pod
        self._by_service.setdefault(pod.service, {})[uid] = pod
        if pod.is_ready and uid not in self._first_ready_s:
            self._first_ready_s[uid] = None if is_new else pod.ready_changed_s

    def drop_pod(self, item: Object) -> None:
        """Forget a pod that was deleted."""
        self._forget_pod(item["metadata"]["uid"])

    def keep_pods(self, namespace: str | None, uids: set[str]) -> None:
        """Forget the pods of a namespace that a complete list lacks."""
        for uid, pod in list(self._pods.items()):
            if uid not in uids and namespace in (None, pod.service.namespace):
                self._forget_pod(uid)

    def replica(
        self, pod: PodRecord, now_s: float, reading: Reading | None = None, *, is_draining: bool = False
    ) -> Replica:
        """Return a pod as a decision sees it, named by uid, so that a namesake is another one.

        `is_draining` is what its engine says; it knows before the pod shows it.
        """
        if pod.is_leaving or (is_draining and pod.is_ready):
            phase = ReplicaPhase.DRAINING
        else:
            phase = ReplicaPhase.READY if pod.is_ready else ReplicaPhase.PENDING
        created_s = min(pod.created_s, now_s)  # by the API server's clock, which may be ahead
        if phase is ReplicaPhase.PENDING and pod.uid in self._first_ready_s and pod.ready_changed_s is not None:
            created_s = max(created_s, min(pod.ready_changed_s, now_s))  # it starts again, with all patience
        return Replica(
            name=pod.uid,
            phase=phase,
            created_s=created_s,
            ready_s=self._first_ready_s.get(pod.uid) if pod.is_ready else None,
            reading=reading,
        )

    def _forget_pod(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        self._first_ready_s.pop(uid, None)
        if pod is None:
            return
        pods = self._by_service[pod.service]
        pods.pop(uid, None)
        if not pods:
            del self._by_service[pod.service]


def all_namespaces(namespaces: Iterable[str]) -> tuple[str | None, ...]:
    """Return what to list: each namespace, or all at once where none is named."""
    return tuple(namespaces) or (None,)
