"""The InferencePool of a service, where the gateway inference extension is installed: its replicas and their picker."""

from pagefleet.api.labels import service_selector, traffic_selector
from pagefleet.api.resources import INFERENCE_POOLS
from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.operator.plan.intent import Intent, make_intent
from pagefleet.operator.plan.names import derived_name
from pagefleet.operator.plan.settings import ENGINE_PORT, RenderSettings


def render_inference_pool(service: InferenceService, settings: RenderSettings, *, selects_traffic: bool) -> Intent:
    """Return the pool, of the pods that the Service selects. Without a picker the gateway chooses itself (FailOpen)."""
    name = service.metadata.name
    picker = settings.endpoint_picker.format(service=name)
    return make_intent(
        INFERENCE_POOLS,
        service,
        name,
        {
            "spec": {
                "selector": {"matchLabels": traffic_selector(name) if selects_traffic else service_selector(name)},
                "targetPorts": [{"number": ENGINE_PORT}],
                "endpointPickerRef": {
                    "name": picker if len(picker) <= 63 else derived_name(name, "endpoint-picker"),
                    "port": {"number": settings.endpoint_picker_port},
                    "failureMode": "FailOpen",
                },
            }
        },
    )
