"""The NetworkPolicy of a service: everybody reaches the API, only the control plane the admin port."""

from pagefleet.api.labels import NAME_LABEL, PROJECT, service_selector
from pagefleet.api.resources import NETWORK_POLICIES
from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.operator.plan.intent import Intent, make_intent
from pagefleet.operator.plan.settings import ADMIN_PORT, ENGINE_PORT, RenderSettings

NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"


def render_network_policy(service: InferenceService, settings: RenderSettings) -> Intent:
    """Return the policy. Probes come from the node and are never blocked; what pods fetch is not restricted."""
    control_plane = {
        "namespaceSelector": {"matchLabels": {NAMESPACE_NAME_LABEL: settings.operator_namespace}},
        "podSelector": {"matchLabels": {NAME_LABEL: PROJECT}},
    }
    return make_intent(
        NETWORK_POLICIES,
        service,
        service.metadata.name,
        {
            "spec": {
                "podSelector": {"matchLabels": service_selector(service.metadata.name)},
                "policyTypes": ["Ingress"],
                "ingress": [
                    {"ports": [{"port": ENGINE_PORT, "protocol": "TCP"}]},
                    {"from": [control_plane], "ports": [{"port": ADMIN_PORT, "protocol": "TCP"}]},
                ],
            }
        },
    )
