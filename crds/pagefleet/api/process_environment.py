"""What operator and autoscaler have in common of their environment, read once by the settings module of each."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class SettingsError(ValueError):
    """Say which variable or flag is wrong, and a value that would work."""


class ProcessPart(TypedDict):
    """Settings that every process of the control plane has, by the names of their fields."""

    kubeconfig: str | None
    namespaces: tuple[str, ...]
    identity: str
    lease_name: str
    lease_duration_s: float
    http_port: int
    log_level: str


def read_process(
    env: Mapping[str, str],
    *,
    lease_name: str,
    kubeconfig: str | None,
    namespaces: tuple[str, ...],
    http_port: int | None,
) -> ProcessPart:
    """Return the common settings: flags win over `PAGEFLEET_*`; raises SettingsError."""
    port = number(env, "PAGEFLEET_HTTP_PORT", 8080) if http_port is None else http_port
    if not 0 <= port <= 65_535:
        raise SettingsError(f"the HTTP port is {port}, which is no port; write 0 to 65535, such as 8080")
    is_inside = bool(env.get("KUBERNETES_SERVICE_HOST"))
    return ProcessPart(
        kubeconfig=kubeconfig or (None if is_inside else env.get("KUBECONFIG")),
        namespaces=namespaces or words(env.get("PAGEFLEET_WATCH_NAMESPACES", "")),
        identity=env.get("PAGEFLEET_POD_NAME") or f"{socket.gethostname()}-{os.getpid()}",
        lease_name=env.get("PAGEFLEET_LEASE_NAME") or lease_name,
        lease_duration_s=float(number(env, "PAGEFLEET_LEASE_DURATION", 12, least=1)),
        http_port=port,
        log_level=choice(env, "PAGEFLEET_LOG_LEVEL", ("INFO", "DEBUG", "WARNING", "ERROR")),
    )


def own_namespace(env: Mapping[str, str]) -> str:
    """Return the namespace of this process, where its lease is."""
    return env.get("PAGEFLEET_NAMESPACE") or _account_namespace() or "default"


def words(text: str) -> tuple[str, ...]:
    """Return what stands between commas or spaces."""
    return tuple(text.replace(",", " ").split())


def number(env: Mapping[str, str], name: str, default: int, *, least: int = 0) -> int:
    """Return a whole number; raises SettingsError."""
    text = env.get(name) or str(default)
    if not text.isdecimal() or int(text) < least:
        raise SettingsError(f"{name} is {text!r}, which is no whole number from {least}; write for example {default}")
    return int(text)


def choice(env: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """Return one of some words, the first by default; raises SettingsError."""
    text = env.get(name) or choices[0]
    if text not in choices:
        raise SettingsError(f"{name} is {text!r}; write one of {', '.join(choices)}")
    return text


def _account_namespace() -> str | None:
    try:
        return _ACCOUNT_NAMESPACE.read_text().strip()
    except OSError:
        return None
