"""The operator's settings, read once from flags and environment into one frozen object."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pagefleet.operator.hub import Hub
from pagefleet.operator.plan.settings import RenderSettings

_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_ENGINE_IMAGE = "pagefleet/engine:{version}"


class SettingsError(ValueError):
    """Say which variable or flag is wrong, and a value that would work."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """How one operator process runs."""

    render: RenderSettings
    hub: Hub | None = field(default=Hub())
    """Where models are looked up before their pods exist; None where they are not."""
    kubeconfig: str | None = None
    """File with the credentials; None takes those of the pod."""
    namespaces: tuple[str, ...] = ()
    """Namespaces to serve; empty means all of them."""
    identity: str = "local"
    """Holder of the lease: the pod's name, or host and process."""
    lease_name: str = "pagefleet-operator"
    lease_duration_s: float = 12.0
    """See `leader.LeaseSettings`."""
    http_port: int = 8080
    """Port of health and metrics; 0 takes any free one."""
    workers: int = 16
    """Services worked on at once: each waits for the API server most of the time."""
    rest_workers: int = 2
    """Services whose objects beside the replicas are applied at once: the API server makes cluster addresses one after
    another, and more callers only hold up everything else."""
    coalesce_s: float = 0.5
    """Time for which events of pods are collected before a service is looked at: a start brings many."""
    resync_s: float = 600.0
    """Time between complete lists, which find what events missed."""
    sweep_delay_s: float = 5.0
    """Time from a re-list by kopf to our own, which finds what vanished meanwhile."""
    node_poll_s: float = 60.0
    """Time between looks at the nodes' accelerators."""
    engine_poll_s: float = 1.0
    """Time between questions to an engine that starts."""
    log_level: str = "INFO"


def read_settings(
    environment: Mapping[str, str] | None = None,
    *,
    kubeconfig: str | None = None,
    namespaces: tuple[str, ...] = (),
    http_port: int | None = None,
) -> OperatorSettings:
    """Return the settings of this process: flags win over `PAGEFLEET_*`; raises SettingsError."""
    env = os.environ if environment is None else environment
    own_version = _version()
    own_namespace = env.get("PAGEFLEET_NAMESPACE") or _account_namespace() or "default"
    render = RenderSettings(
        engine_image=env.get("PAGEFLEET_ENGINE_IMAGE") or DEFAULT_ENGINE_IMAGE.format(version=own_version),
        engine_pull_policy=_choice(env, "PAGEFLEET_ENGINE_PULL_POLICY", ("IfNotPresent", "Always", "Never")),
        engine_pull_secrets=_words(env.get("PAGEFLEET_ENGINE_PULL_SECRETS", "")),
        operator_version=own_version,
        operator_namespace=own_namespace,
        drain_timeout_s=_number(env, "PAGEFLEET_DRAIN_TIMEOUT", 600),
        cluster_domain=env.get("PAGEFLEET_CLUSTER_DOMAIN") or "svc",
    )
    port = _number(env, "PAGEFLEET_HTTP_PORT", 8080) if http_port is None else http_port
    if not 0 <= port <= 65_535:
        raise SettingsError(f"the HTTP port is {port}, which is no port; write 0 to 65535, such as 8080")
    return OperatorSettings(
        render=render,
        hub=_hub(env),
        kubeconfig=kubeconfig or (env.get("KUBECONFIG") if _is_outside(env) else None),
        namespaces=namespaces or _words(env.get("PAGEFLEET_WATCH_NAMESPACES", "")),
        identity=env.get("PAGEFLEET_POD_NAME") or f"{socket.gethostname()}-{os.getpid()}",
        lease_name=env.get("PAGEFLEET_LEASE_NAME") or "pagefleet-operator",
        lease_duration_s=float(_number(env, "PAGEFLEET_LEASE_DURATION", 12)),
        http_port=port,
        log_level=_choice(env, "PAGEFLEET_LOG_LEVEL", ("INFO", "DEBUG", "WARNING", "ERROR")),
    )


def _hub(env: Mapping[str, str]) -> Hub | None:
    if _choice(env, "PAGEFLEET_HUB", ("on", "off")) == "off":
        return None
    endpoint = _url(env, "PAGEFLEET_HUB_ENDPOINT", Hub().endpoint) or Hub().endpoint
    return Hub(endpoint=endpoint.rstrip("/"), proxy=_url(env, "PAGEFLEET_HUB_PROXY", "http://proxy.example:3128"))


def _url(env: Mapping[str, str], name: str, example: str) -> str | None:
    text = env.get(name)
    if text and not text.startswith(("http://", "https://")):
        raise SettingsError(f"{name} is {text!r}, which is no URL; write for example {example}")
    return text or None


def _version() -> str:
    try:
        return version("pagefleet")
    except PackageNotFoundError:
        return "0"


def _is_outside(env: Mapping[str, str]) -> bool:
    return not env.get("KUBERNETES_SERVICE_HOST")


def _account_namespace() -> str | None:
    try:
        return _ACCOUNT_NAMESPACE.read_text().strip()
    except OSError:
        return None


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    if not text.isdecimal():
        raise SettingsError(f"{name} is {text!r}, which is no whole number; write for example {default}")
    return int(text)


def _choice(env: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = env.get(name) or choices[0]
    if text not in choices:
        raise SettingsError(f"{name} is {text!r}; write one of {', '.join(choices)}")
    return text
