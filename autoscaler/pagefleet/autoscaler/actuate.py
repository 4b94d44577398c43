"""The autoscaler's writes: the scale subresource, its part of the status, and events. Nothing else is written."""

import time

from pagefleet.api.client import KubernetesClient
from pagefleet.api.client_errors import Conflict, NotFound
from pagefleet.api.installed_schema import InstalledSchema
from pagefleet.api.labels import AUTOSCALER_FIELD_MANAGER
from pagefleet.api.resources import EVENTS, INFERENCE_SERVICES
from pagefleet.api.retry import NEVER
from pagefleet.api.v1alpha1 import AutoscalingStatus
from pagefleet.autoscaler.explain import Told
from pagefleet.autoscaler.metrics import AutoscalerMetrics
from pagefleet.autoscaler.records import ServiceRecord
from pagefleet.autoscaler.store import Store


class Actuator:
    """Write what was decided; every method raises `ApiError`."""

    def __init__(
        self, client: KubernetesClient, store: Store, schema: InstalledSchema, metrics: AutoscalerMetrics, identity: str
    ) -> None:
        self._client, self._store, self._schema, self._metrics = client, store, schema, metrics
        self._identity = identity

    async def scale(self, record: ServiceRecord, replicas: int) -> bool:
        """Set the number of replicas; False where somebody else has changed it meanwhile, or the service is gone.

        The write is bound to the version that was decided from. When only the status has moved on, it is tried again.
        """
        for _ in range(3):
            body = {"metadata": {"resourceVersion": record.version}, "spec": {"replicas": replicas}}
            try:
                answer = await self._client.patch_merge(
                    INFERENCE_SERVICES,
                    record.key.namespace,
                    record.key.name,
                    body,
                    subresource="scale",
                    field_manager=AUTOSCALER_FIELD_MANAGER,
                )
            except NotFound:
                return False
            except Conflict:
                newest = await self._client.get(INFERENCE_SERVICES, record.key.namespace, record.key.name)
                if newest is None:
                    return False
                self._store.put_service(newest)
                found = self._store.service(record.uid)
                if found is None or found.generation != record.generation:
                    return False  # what was decided from is no more
                record = found
                continue
            self._metrics.count_write("scale")
            self._store.put_replicas(record.uid, replicas, answer["metadata"]["resourceVersion"])
            return True
        return False

    async def write_status(self, record: ServiceRecord, status: AutoscalingStatus) -> None:
        """Write `status.autoscaling` as one field manager; a service that is gone is let go."""
        body = {
            "metadata": {"name": record.key.name, "namespace": record.key.namespace, "uid": record.uid},
            "status": self._schema.prune({"autoscaling": status.to_manifest()}),
        }
        try:
            answer = await self._client.apply(INFERENCE_SERVICES, body, AUTOSCALER_FIELD_MANAGER, subresource="status")
        except (Conflict, NotFound):
            return
        self._metrics.count_write("status")
        self._store.put_service(answer)

    async def tell(self, record: ServiceRecord, told: Told, time_s: float) -> None:
        """Write an event about a service."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_s))
        resource, key = INFERENCE_SERVICES, record.key
        event = {
            "metadata": {"name": f"{key.name}.{time.time_ns():x}", "namespace": key.namespace},
            "involvedObject": {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "name": key.name,
                "namespace": key.namespace,
                "uid": record.uid,
                "resourceVersion": record.version,
            },
            "reason": told.reason,
            "message": told.message[:1024],
            "type": "Warning" if told.is_warning else "Normal",
            "source": {"component": AUTOSCALER_FIELD_MANAGER},
            "reportingComponent": AUTOSCALER_FIELD_MANAGER,
            "reportingInstance": self._identity,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
        await self._client.create(EVENTS, event, retry=NEVER)
        self._metrics.count_write("event")
