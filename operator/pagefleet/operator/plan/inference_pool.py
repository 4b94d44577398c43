"""The InferencePool of a service, where the gateway inference extension is installed: its replicas and their picker."""

from pagefleet.api.labels import service_selector
from pagefleet.api.resources import INFERENCE_POOLS
from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.operator.plan.intent import Intent, make_intent
from pagefleet.operator.plan.names import derived_name
from pagefleet.operator.plan.settings import ENGINE_PORT, RenderSettings


def render_inference_pool(service: InferenceService, settings: RenderSettings) -> Intent:
    """Return the pool. Without a running picker the gateway chooses by itself (FailOpen)."""
    name = service.metadata.name
    picker = settings.endpoint_picker.format(service=name)
    return make_intent(
        INFERENCE_POOLS,
        service,
        name,
        {
            "spec": {
                "selector": {"matchLabels": service_selector(name)},
                "targetPorts": [{"number": ENGINE_PORT}],
                "endpointPickerRef": {
                    "name": picker if len(picker) <= 63 else derived_name(name, "endpoint-picker"),
                    "port": {"number": settings.endpoint_picker_port},
                    "failureMode": "FailOpen",
                },
            }
        },
    )
