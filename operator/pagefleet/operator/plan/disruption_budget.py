"""The PodDisruptionBudget of a service: node drains take one replica at a time."""

from pagefleet.api.labels import service_selector
from pagefleet.api.resources import POD_DISRUPTION_BUDGETS
from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.operator.plan.intent import Intent, make_intent


def render_disruption_budget(service: InferenceService) -> Intent:
    """Return the budget. A single replica may be evicted too: otherwise its node could never be emptied."""
    return make_intent(
        POD_DISRUPTION_BUDGETS,
        service,
        service.metadata.name,
        {
            "spec": {
                "maxUnavailable": 1,
                "selector": {"matchLabels": service_selector(service.metadata.name)},
                # A replica that does not answer protects nobody.
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            }
        },
    )
