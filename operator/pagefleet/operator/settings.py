"""The operator's settings, read once from flags and environment into one frozen object."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from pagefleet.api.process_environment import SettingsError, choice, number, own_namespace, read_process, words
from pagefleet.operator.hub import Hub
from pagefleet.operator.plan.settings import RenderSettings

LEASE_NAME = "pagefleet-operator"
DEFAULT_ENGINE_IMAGE = "pagefleet/engine:{version}"


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
    lease_name: str = LEASE_NAME
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
    render = RenderSettings(
        engine_image=env.get("PAGEFLEET_ENGINE_IMAGE") or DEFAULT_ENGINE_IMAGE.format(version=own_version),
        engine_pull_policy=choice(env, "PAGEFLEET_ENGINE_PULL_POLICY", ("IfNotPresent", "Always", "Never")),
        engine_pull_secrets=words(env.get("PAGEFLEET_ENGINE_PULL_SECRETS", "")),
        operator_version=own_version,
        operator_namespace=own_namespace(env),
        drain_timeout_s=number(env, "PAGEFLEET_DRAIN_TIMEOUT", 600),
        endpoint_delay_s=number(env, "PAGEFLEET_ENDPOINT_DELAY", 5),
        cluster_domain=env.get("PAGEFLEET_CLUSTER_DOMAIN") or "svc",
    )
    return OperatorSettings(
        **read_process(env, lease_name=LEASE_NAME, kubeconfig=kubeconfig, namespaces=namespaces, http_port=http_port),
        render=render,
        hub=_hub(env),
    )


def _hub(env: Mapping[str, str]) -> Hub | None:
    if choice(env, "PAGEFLEET_HUB", ("on", "off")) == "off":
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
