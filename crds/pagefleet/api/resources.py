"""The kinds of Kubernetes objects that pagefleet reads or writes, and the API server's path of each."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from pagefleet.api import GROUP, KIND, PLURAL, VERSION


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object in one version of its API."""

    group: str
    """API group; empty for the core one."""
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The `apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_path(self) -> str:
        """Path of the API version: what it serves is listed there."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    @property
    def crd_name(self) -> str:
        """Name of the CustomResourceDefinition that adds this kind, where it is no built-in one."""
        return f"{self.plural}.{self.group}"

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the path of one object, of its subresource, or of a list; without a namespace of all namespaces.

        Raises ValueError where an object of this kind must have a namespace and none is given.
        """
        if name is not None and self.namespaced and not namespace:
            raise ValueError(f"{self.kind} {name} needs a namespace")
        parts = [self.group_path]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts += [quote(name, safe=""), *([subresource] if subresource else [])]
        return "/".join(parts)


INFERENCE_SERVICES: Final = Resource(GROUP, VERSION, PLURAL, KIND)

REPLICA_SETS: Final = Resource("apps", "v1", "replicasets", "ReplicaSet")
CONTROLLER_REVISIONS: Final = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
PODS: Final = Resource("", "v1", "pods", "Pod")
SERVICES: Final = Resource("", "v1", "services", "Service")
SERVICE_ACCOUNTS: Final = Resource("", "v1", "serviceaccounts", "ServiceAccount")
EVENTS: Final = Resource("", "v1", "events", "Event")
NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
NODES: Final = Resource("", "v1", "nodes", "Node", namespaced=False)
POD_DISRUPTION_BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICIES: Final = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
CUSTOM_RESOURCE_DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)

# Of other projects: used only where a cluster has them.
SERVICE_MONITORS: Final = Resource("monitoring.coreos.com", "v1", "servicemonitors", "ServiceMonitor")
INFERENCE_POOLS: Final = Resource("inference.networking.k8s.io", "v1", "inferencepools", "InferencePool")
