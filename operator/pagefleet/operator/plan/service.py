"""The Kubernetes Service of a service: one stable address for its ready replicas of all revisions."""

from pagefleet.api.labels import service_selector
from pagefleet.api.resources import SERVICES
from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.operator.plan.intent import Intent, make_intent
from pagefleet.operator.plan.settings import ENGINE_PORT, RenderSettings


def render_service(service: InferenceService) -> Intent:
    """Return the Service. The admin port is not in it: drains are not for clients."""
    return make_intent(
        SERVICES,
        service,
        service.metadata.name,
        {
            "spec": {
                "type": "ClusterIP",
                "selector": service_selector(service.metadata.name),
                "ports": [{"name": "http", "port": ENGINE_PORT, "protocol": "TCP", "targetPort": "http"}],
            }
        },
    )


def service_url(service: InferenceService, settings: RenderSettings) -> str:
    """Return the base of the OpenAI API inside the cluster."""
    host = f"{service.metadata.name}.{service.metadata.namespace}.{settings.cluster_domain}"
    return f"http://{host}:{ENGINE_PORT}/v1"
