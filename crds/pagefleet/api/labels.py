"""Names on Kubernetes objects: labels, annotations, field managers, and the label sets made of them."""

from pagefleet.api import GROUP

NAME_LABEL = "app.kubernetes.io/name"
INSTANCE_LABEL = "app.kubernetes.io/instance"
VERSION_LABEL = "app.kubernetes.io/version"
COMPONENT_LABEL = "app.kubernetes.io/component"
PART_OF_LABEL = "app.kubernetes.io/part-of"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"

SERVICE_LABEL = f"{GROUP}/service"
REVISION_LABEL = f"{GROUP}/revision"
TRAFFIC_LABEL = f"{GROUP}/traffic"
"""On a pod: whether its service's address leads to it, `on` or `off`. ReplicaSets do not select by it, so that a pod
may be taken off its Service and still be counted."""
TRAFFIC_ON, TRAFFIC_OFF = "on", "off"

INTENT_HASH_ANNOTATION = f"{GROUP}/intent-hash"
"""Hash of an applied object as the operator meant it: equal hash, no write."""
CONFIG_HASH_ANNOTATION = f"{GROUP}/config-hash"
"""Hash of the engine settings a pod was started with; `/capacity` reports the same one."""
SCHEMA_HASH_ANNOTATION = f"{GROUP}/schema-hash"
"""Hash of the schema, on the CRD: the operator compares it at start, since an older schema drops newer fields."""
ADOPT_TEMPLATE_ANNOTATION = f"{GROUP}/adopt-template"
"""On a service, set by the user: the operator version whose pod template may replace the pinned one."""
DRAIN_ANNOTATION = f"{GROUP}/drain"
"""On a pod that was chosen to leave: when its drain began, RFC 3339."""
POD_DELETION_COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"

# One server-side-apply field manager for each writer, so that `managedFields` names the owner of each field.
OPERATOR_FIELD_MANAGER = "pagefleet-operator"
AUTOSCALER_FIELD_MANAGER = "pagefleet-autoscaler"

PROJECT = "pagefleet"
ENGINE_COMPONENT = "engine"


def service_selector(service: str) -> dict[str, str]:
    """Return the labels that select every engine pod of a service.

    Selectors of ReplicaSets and Services can't change later, so this set holds nothing that varies with a version.
    """
    return {NAME_LABEL: PROJECT, COMPONENT_LABEL: ENGINE_COMPONENT, SERVICE_LABEL: service}


def traffic_selector(service: str) -> dict[str, str]:
    """Return the labels that select those engine pods of a service that take new requests."""
    return {**service_selector(service), TRAFFIC_LABEL: TRAFFIC_ON}


def revision_selector(service: str, revision: str) -> dict[str, str]:
    """Return the labels that select the engine pods of one revision."""
    return {**service_selector(service), REVISION_LABEL: revision}


def service_labels(service: str) -> dict[str, str]:
    """Return the labels of every object that belongs to a service."""
    return {
        **service_selector(service),
        INSTANCE_LABEL: service,
        PART_OF_LABEL: PROJECT,
        MANAGED_BY_LABEL: OPERATOR_FIELD_MANAGER,
    }


def revision_labels(service: str, revision: str) -> dict[str, str]:
    """Return the labels of every object that belongs to one revision of a service, its pods included."""
    return {**service_labels(service), REVISION_LABEL: revision}


def label_selector_text(labels: dict[str, str]) -> str:
    """Return labels as a selector string such as `a=b,c=d`, sorted, as list calls and the scale subresource want it."""
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
