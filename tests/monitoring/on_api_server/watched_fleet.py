"""A service as a cluster has it, on one machine: operator, autoscaler and an engine under load, each a real process.

Only the kubelet is missing: the pod seems to run, and its address is one of this machine's, where the engine listens.
"""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pagefleet.api.resources import PODS
from tests.autoscaler.on_api_server.fleet import AutoscalerProcess
from tests.cluster.cluster import Cluster
from tests.monitoring.load import Load
from tests.monitoring.programs import prometheus_program
from tests.monitoring.prometheus_server import PrometheusServer, Target
from tests.monitoring.promql import ALERTS
from tests.operator.operator_process import OperatorProcess, Team, wait_for
from tests.support.engine_server import EngineServer
from tests.support.hub import Hub
from tests.support.tiny_models import make_tiny_model

ADMIN_PORT = 9000

SMALL_CACHE = {"kv_cache_memory_bytes": 2**18, "max_num_seqs": 4}
"""So that blocks are evicted and requests wait."""
SERVICE = "chat"
SPEC = {
    "replicas": 1,
    "accelerator": {"resource": "nvidia.com/gpu", "count": 1},
    "autoscaling": {"mode": "Active", "maxReplicas": 3, "slo": {"ttft": "2s", "itl": "500ms"}},
}
PRODUCT = "NVIDIA-L4"
"""Whose speed is known, so that the plan holds step times."""


@dataclass(frozen=True)
class WatchedFleet:
    """What tests look at."""

    prometheus: PrometheusServer
    operator: OperatorProcess
    autoscaler: AutoscalerProcess
    engine: EngineServer


@contextmanager
def watched_fleet(cluster: Cluster, folder: Path) -> Iterator[WatchedFleet]:
    """Start everything, and wait until Prometheus has seen it work."""
    prometheus_program("prometheus")  # before anything starts that would wait for it
    model = make_tiny_model(folder / "model", max_position_embeddings=1024)
    with ExitStack() as stack:
        hub = stack.enter_context(Hub(model))
        nodes = stack.enter_context(cluster.fake_nodes(1, 8, prefix="watched-"))
        cluster.kubectl("label", "--overwrite", "node", *nodes.names, f"nvidia.com/gpu.product={PRODUCT}")
        team = Team(cluster, stack.enter_context(cluster.namespace("watched", wait=False)))
        team.apply(SERVICE, "hf://organisation/tiny", **SPEC)
        settings = {"PAGEFLEET_HUB": "on", "PAGEFLEET_HUB_ENDPOINT": hub.url}
        operator = stack.enter_context(OperatorProcess(cluster, team.namespace, folder, **settings))
        autoscaler = stack.enter_context(AutoscalerProcess(cluster, team.namespace, folder))
        pod, uid = wait_for("a pod runs", lambda: _running_pod(team))
        engine = stack.enter_context(_engine_of(team, model, pod, uid))
        labels = {"namespace": team.namespace, "service": SERVICE, "pod": pod}
        targets = [
            Target(f"http://{_address()}:{ADMIN_PORT}/metrics", labels),
            *(Target(f"http://127.0.0.1:{process.port}/metrics") for process in (operator, autoscaler)),
        ]
        prometheus = stack.enter_context(PrometheusServer(folder, targets, rules=ALERTS))
        engine.wait_ready()
        stack.enter_context(Load(engine.url))
        prometheus.wait_scraped("pagefleet_operator_reconcile_seconds_count > 0", timeout_s=120)
        more = json.dumps({"spec": {"autoscaling": {"maxReplicas": 4}}})  # so that the operator looks again
        team.kubectl("patch", "pf", SERVICE, "--type=merge", "--patch", more)
        prometheus.wait_scraped("pagefleet_autoscaler_missed_ratio", timeout_s=120)
        prometheus.wait_scraped("pagefleet_autoscaler_arrival_rate > 0", timeout_s=120)
        prometheus.wait_scraped("rate(pagefleet_operator_reconcile_seconds_count[1m]) > 0", timeout_s=120)
        prometheus.wait_scraped("rate(pagefleet_autoscaler_tick_seconds_count[1m]) > 0", timeout_s=120)
        yield WatchedFleet(prometheus, operator, autoscaler, engine)


def _running_pod(team: Team) -> tuple[str, str] | None:
    for pod in team.objects(PODS):
        if pod["status"].get("podIP"):
            return pod["metadata"]["name"], pod["metadata"]["uid"]
    return None


def _engine_of(team: Team, model: Path, pod: str, uid: str) -> EngineServer:
    """Give a pod the address of this machine at which its engine will listen, and start that."""
    status = {"podIP": _address(), "podIPs": [{"ip": _address()}]}
    team.kubectl("patch", "pod", pod, "--subresource=status", "--type=merge", "--patch", json.dumps({"status": status}))
    return EngineServer(model, engine=SMALL_CACHE, server={"host": _address(), "admin_port": ADMIN_PORT}, pod_uid=uid)


def _address() -> str:
    """Return an address of this machine that no other test process has."""
    number = os.getpid()
    return f"127.{200 + number // 62_500}.{number // 250 % 250}.{number % 250 + 1}"
