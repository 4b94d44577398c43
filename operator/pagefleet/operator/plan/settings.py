"""What the operator's owner decides about every pod: images, accounts, ports and times. Values only, read elsewhere."""

from dataclasses import dataclass, field

ENGINE_PORT = 8000
"""Port of the OpenAI API, on the pod and on its Service."""
ADMIN_PORT = 9000
"""Port of probes, capacity and drain; never in a Service."""


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """What rendering needs beside the service itself."""

    engine_image: str
    """Image of the engine, best by digest."""
    operator_version: str
    """Version of this operator; a pinned template remembers who rendered it."""
    operator_namespace: str
    """Namespace of operator and autoscaler: only pods there reach the admin port."""
    engine_pull_policy: str = "IfNotPresent"
    """When the kubelet pulls the engine image."""
    engine_pull_secrets: tuple[str, ...] = ()
    """Secrets in the service's namespace that hold the registry's login."""
    engine_user_id: int = 65532
    """Numeric user and group of the engine: `runAsNonRoot` can't be checked for a name."""
    cluster_domain: str = "svc"
    """What follows the namespace in a service's URL; `svc.cluster.local` where clients lack search domains."""
    drain_timeout_s: int = 600
    """Time that running requests get after SIGTERM; long answers take minutes."""
    endpoint_delay_s: int = 5
    """Time between the decision to stop a pod and its drain or SIGTERM: proxies still send requests that long."""
    cpu_requests: dict[str, str] = field(default_factory=lambda: {"cpu": "250m", "memory": "512Mi"})
    """What a replica on the CPU asks for unless its template says more: enough not to be evicted first, small enough
    that a second replica fits on a laptop's node during a rollout."""
    endpoint_picker: str = "{service}-endpoint-picker"
    """Name of the Service of a gateway's endpoint picker, with the place of the service's name."""
    endpoint_picker_port: int = 9002
    """Port of the endpoint picker."""
