"""The ServiceMonitor of a service, where the Prometheus operator is installed: scrape each replica's public port."""

from pagefleet.api.labels import INSTANCE_LABEL, service_selector
from pagefleet.api.resources import SERVICE_MONITORS
from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.operator.plan.intent import Intent, make_intent


def render_service_monitor(service: InferenceService) -> Intent:
    """Return the monitor."""
    return make_intent(
        SERVICE_MONITORS,
        service,
        service.metadata.name,
        {
            "spec": {
                "selector": {"matchLabels": service_selector(service.metadata.name)},
                "targetLabels": [INSTANCE_LABEL],
                "endpoints": [{"port": "http", "path": "/metrics", "interval": "15s"}],
            }
        },
    )
