"""The Kubernetes Service of a service: one stable address for its ready replicas of all revisions that do not drain."""

from pagefleet.api.labels import service_selector, traffic_selector
from pagefleet.api.resources import SERVICES
from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.operator.plan.intent import Intent, make_intent
from pagefleet.operator.plan.settings import ENGINE_PORT, RenderSettings


def render_service(service: InferenceService, *, selects_traffic: bool) -> Intent:
    """Return the Service. The admin port is not in it: drains are not for clients.

    Pods that an older operator made carry no label of traffic yet; until they do, all pods are selected.
    """
    name = service.metadata.name
    return make_intent(
        SERVICES,
        service,
        name,
        {
            "spec": {
                "type": "ClusterIP",
                "selector": traffic_selector(name) if selects_traffic else service_selector(name),
                "ports": [{"name": "http", "port": ENGINE_PORT, "protocol": "TCP", "targetPort": "http"}],
            }
        },
    )


def service_url(service: InferenceService, settings: RenderSettings) -> str:
    """Return the base of the OpenAI API inside the cluster."""
    host = f"{service.metadata.name}.{service.metadata.namespace}.{settings.cluster_domain}"
    return f"http://{host}:{ENGINE_PORT}/v1"
