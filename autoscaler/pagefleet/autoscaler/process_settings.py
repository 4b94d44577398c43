"""The autoscaler's settings as a process, read once from flags and environment into one frozen object."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pagefleet.api.process_environment import choice, own_namespace, read_process

LEASE_NAME = "pagefleet-autoscaler"


class LoggedTicks(StrEnum):
    """Which decisions are logged: none, those in which anything but time changed, or all."""

    NONE = "none"
    CHANGED = "changed"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """How one autoscaler process runs."""

    namespace: str = "default"
    """Its own, where the lease is."""
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
    tick_s: float = 5.0
    """Time between decisions: two rounds of reports fit into the age that `decide` takes for fresh."""
    scrape_timeout_s: float = 2.0
    """An engine answers in milliseconds; one that hangs must not hold up the others' decisions."""
    status_interval_s: float = 15.0
    """Least time between writes of signals alone; a decision is written at once."""
    decision_log: str = "-"
    """File that the decision log is appended to; `-` is standard output."""
    logged_ticks: LoggedTicks = LoggedTicks.CHANGED
    log_level: str = "INFO"


def read_settings(
    environment: Mapping[str, str] | None = None,
    *,
    kubeconfig: str | None = None,
    namespaces: tuple[str, ...] = (),
    http_port: int | None = None,
) -> ProcessSettings:
    """Return the settings of this process: flags win over `PAGEFLEET_*`; raises SettingsError."""
    env = os.environ if environment is None else environment
    return ProcessSettings(
        **read_process(env, lease_name=LEASE_NAME, kubeconfig=kubeconfig, namespaces=namespaces, http_port=http_port),
        namespace=own_namespace(env),
        decision_log=env.get("PAGEFLEET_DECISION_LOG") or "-",
        logged_ticks=LoggedTicks(choice(env, "PAGEFLEET_DECISION_LOG_TICKS", ("changed", "all", "none"))),
    )
