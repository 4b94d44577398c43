"""The pod template of a service: one engine container, restricted, probed and drained on the admin port."""

from typing import Any

from pagefleet.api.labels import TRAFFIC_LABEL, TRAFFIC_ON, revision_labels
from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.operator.plan.engine_arguments import engine_device, render_engine_arguments
from pagefleet.operator.plan.model_files import ModelFiles, place_model
from pagefleet.operator.plan.names import account_name
from pagefleet.operator.plan.settings import ADMIN_PORT, ENGINE_PORT, RenderSettings
from pagefleet.operator.plan.template_patch import patch_template

JsonObject = dict[str, Any]

ENGINE_CONTAINER = "engine"
CACHE_VOLUME = "cache"
CACHE_FOLDER = "/cache"
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - a pod serves its network
NO_CEILING = 2**31 - 1
"""Start-up probes that may fail: a large model on a slow line is no failure. Whether a start makes headway is told from
the engine's own progress, and the operator reports it."""
LEAVING_S = 15
"""What a pod needs beside its drain: the last bytes, the core's end."""


def render_pod_template(service: InferenceService, settings: RenderSettings) -> JsonObject:
    """Return the template of a service's pods without labels of a revision, the user's patch laid over it.

    Raises UnsupportedSpec and TemplatePatchError.
    """
    model = place_model(service.spec)
    spec: JsonObject = {
        "automountServiceAccountToken": False,
        "containers": [_engine(service, settings, model)],
        "enableServiceLinks": False,
        "securityContext": {
            "fsGroup": settings.engine_user_id,
            "fsGroupChangePolicy": "OnRootMismatch",
            "runAsGroup": settings.engine_user_id,
            "runAsNonRoot": True,
            "runAsUser": settings.engine_user_id,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "serviceAccountName": account_name(service.metadata.name),
        "terminationGracePeriodSeconds": settings.endpoint_delay_s + settings.drain_timeout_s + LEAVING_S,
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": CACHE_VOLUME, "emptyDir": {}},
            *model.volumes,
        ],
    }
    if settings.engine_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.engine_pull_secrets]
    if resource := service.spec.accelerator.resource:
        # Nodes with accelerators are often tainted with the resource's name, to keep other pods away.
        spec["tolerations"] = [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    patch = service.spec.template
    return patch_template({"spec": spec}, {"metadata": patch.metadata or {}, "spec": patch.spec or {}})


def label_template(template: JsonObject, service: str, revision: str) -> JsonObject:
    """Return a template with the labels that select its revision's pods, which no patch may change.

    No part of the stored template: what a newer operator adds here makes no new revision.
    """
    metadata = template.get("metadata") or {}
    labels = {**(metadata.get("labels") or {}), **revision_labels(service, revision), TRAFFIC_LABEL: TRAFFIC_ON}
    return {**template, "metadata": {**metadata, "labels": labels}}


def _engine(service: InferenceService, settings: RenderSettings, model: ModelFiles) -> JsonObject:
    arguments = render_engine_arguments(
        service, model=model.argument, host=EVERY_ADDRESS, port=ENGINE_PORT, admin_port=ADMIN_PORT, names_device=False
    )
    return {
        "name": ENGINE_CONTAINER,
        "image": settings.engine_image,
        "imagePullPolicy": settings.engine_pull_policy,
        "command": ["pagefleet"],
        "args": [*arguments, "--drain-timeout", str(settings.drain_timeout_s)],
        "env": [
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - an emptyDir of the pod's own
            {"name": "HF_HOME", "value": f"{CACHE_FOLDER}/huggingface"},
            {"name": "PAGEFLEET_CACHE", "value": f"{CACHE_FOLDER}/pagefleet"},
            {"name": "PAGEFLEET_DEVICE", "value": engine_device(service.spec)},
            {"name": "POD_UID", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}},
            *model.env,
        ],
        "ports": [
            {"name": "http", "containerPort": ENGINE_PORT, "protocol": "TCP"},
            {"name": "admin", "containerPort": ADMIN_PORT, "protocol": "TCP"},
        ],
        "resources": _resources(service, settings),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        # The last lines of a failed container's log come to its status: the operator needs no right to read logs.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod's own
            {"name": CACHE_VOLUME, "mountPath": CACHE_FOLDER},
            *model.mounts,
        ],
        **_probes(),
        # First the endpoints forget the pod, then SIGTERM: the engine refuses what is new and finishes what runs.
        "lifecycle": {"preStop": {"sleep": {"seconds": settings.endpoint_delay_s}}},
    }


def _resources(service: InferenceService, settings: RenderSettings) -> JsonObject:
    accelerator = service.spec.accelerator
    if accelerator.resource is None:
        return {"requests": dict(settings.cpu_requests)}
    amount = {accelerator.resource: str(accelerator.count)}
    return {"requests": amount, "limits": amount}


def _probes() -> JsonObject:
    """Return the three probes: started when it answers, ready while it takes requests, live while steps are made."""

    def probe(path: str, *, period_s: int, timeout_s: int, failures: int) -> JsonObject:
        return {
            "httpGet": {"path": path, "port": "admin"},
            "periodSeconds": period_s,
            "timeoutSeconds": timeout_s,
            "failureThreshold": failures,
        }

    return {
        "startupProbe": probe("/startupz", period_s=1, timeout_s=5, failures=NO_CEILING),
        "readinessProbe": probe("/readyz", period_s=2, timeout_s=5, failures=2),
        "livenessProbe": probe("/livez", period_s=10, timeout_s=10, failures=3),
    }
