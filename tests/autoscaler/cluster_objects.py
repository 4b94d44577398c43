"""Kubernetes objects as the API server sends them, in one line."""

from typing import Any

from pagefleet.api import API_VERSION, KIND
from pagefleet.api.labels import service_labels

CREATED = "2026-01-01T00:00:00Z"


def service_object(
    name: str = "chat",
    *,
    replicas: int = 2,
    version: int = 1,
    uid: str = "uid-1",
    writer: str | None = "kubectl",
    written: str = CREATED,
    status: dict[str, Any] | None = None,
    autoscaling: dict[str, Any] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    """Return an InferenceService; `writer` is the field manager of `spec.replicas`."""
    fields: dict[str, Any] = {"f:spec": {"f:replicas": {}}}
    managed = [] if writer is None else [{"manager": writer, "time": written, "fieldsV1": fields}]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid,
            "resourceVersion": str(version),
            "generation": version,
            "managedFields": managed,
            **metadata,
        },
        "spec": {
            "model": {"uri": "hf://organisation/model"},
            "replicas": replicas,
            "autoscaling": {"mode": "Active", "maxReplicas": 8} if autoscaling is None else autoscaling,
        },
        "status": status or {},
    }


def pod_object(
    name: str = "chat-1",
    *,
    service: str = "chat",
    is_ready: bool = True,
    changed: str = "2026-01-01T00:02:00Z",
    labels: dict[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return an engine pod."""
    ready = {"type": "Ready", "status": "True" if is_ready else "False", "lastTransitionTime": changed}
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "creationTimestamp": CREATED,
            "labels": {**service_labels(service), **(labels or {})},
            **more.pop("metadata", {}),
        },
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [ready], **more},
    }
