"""The ServiceAccount of a service's pods: an identity without rights or token, for registries and policies."""

from pagefleet.api.resources import SERVICE_ACCOUNTS
from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.operator.plan.intent import Intent, make_intent
from pagefleet.operator.plan.names import account_name


def render_service_account(service: InferenceService) -> Intent:
    """Return the account."""
    name = account_name(service.metadata.name)
    return make_intent(SERVICE_ACCOUNTS, service, name, {"automountServiceAccountToken": False})
