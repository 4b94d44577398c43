"""How the operator does with many services: times, memory and writes, on fake nodes that share the machine.

`PAGEFLEET_SCALE_SERVICES=1000` measures the large reading, 100 by default; `PAGEFLEET_SCALE_REST_S=300` the long rest.
"""

import asyncio
import os
import re
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pagefleet.api.client import KubernetesClient
from pagefleet.api.resources import INFERENCE_SERVICES
from tests.cluster.cluster import Cluster
from tests.operator.operator_process import OperatorProcess, Team, wait_for

SERVICES = int(os.environ.get("PAGEFLEET_SCALE_SERVICES", "100"))
REST_S = float(os.environ.get("PAGEFLEET_SCALE_REST_S", "10"))
BURST = min(200, SERVICES)
REPLICAS = 3

pytestmark = pytest.mark.timeout(900 + 2 * REST_S)


@pytest.fixture
def big_team(crd_cluster: Cluster) -> Iterator[Team]:
    nodes = 2 + SERVICES * REPLICAS // 200
    with (
        crd_cluster.fake_nodes(nodes, 8, prefix="scale-"),
        crd_cluster.namespace("scale", wait=False) as namespace,
    ):
        yield Team(crd_cluster, namespace)


class Arrivals:
    """When the ReplicaSet of each service was first seen, by a watch of its own."""

    def __init__(self, team: Team) -> None:
        column = r"custom-columns=N:.metadata.labels.serving\.pagefleet\.io/service"
        command = ["get", "replicasets", "--watch", "--no-headers", "-o", column, "--namespace", team.namespace]
        self._process = subprocess.Popen(
            ["kubectl", *command], env=team.cluster.environment, stdout=subprocess.PIPE, text=True
        )
        self.seen_s: dict[str, float] = {}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.seen_s.setdefault(line.strip(), time.monotonic())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        if self._process.stdout:
            self._process.stdout.close()


def manifest(team: Team, name: str, replicas: int = REPLICAS) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": team.namespace},
        "spec": {"model": {"uri": "hf://organisation/model"}, "replicas": replicas},
    }


def metric(operator: OperatorProcess, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{name}\S* (\S+)$", operator.get("/metrics"), re.M))


def usage(operator: OperatorProcess) -> tuple[float, float]:
    """Return the CPU seconds and the resident MiB of an operator."""
    process = Path("/proc") / str(operator.process_id)
    fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(
        (process / "statm").read_text().split()[1]
    ) * 4096 / 2**20


def percentiles(times_s: list[float]) -> str:
    ordered = sorted(times_s)
    return f"p50 {1000 * statistics.median(ordered):.0f} ms, p99 {1000 * ordered[int(len(ordered) * 0.99) - 1]:.0f} ms"


async def apply_all(client: KubernetesClient, team: Team, names: list[str], *, at_once: int) -> dict[str, float]:
    """Apply services, and return when each was sent."""
    sent_s: dict[str, float] = {}
    limit = asyncio.Semaphore(at_once)

    async def one(name: str) -> None:
        async with limit:
            sent_s[name] = time.monotonic()
            await client.apply(INFERENCE_SERVICES, manifest(team, name), "user")

    await asyncio.gather(*(one(name) for name in names))
    return sent_s


async def test_many_services(
    client: KubernetesClient, big_team: Team, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    team = big_team
    arrivals = Arrivals(team)
    with OperatorProcess(team.cluster, team.namespace, tmp_path, identity="one") as operator:
        wait_for("it watches", lambda: "first pass after" in operator.log)
        await asyncio.sleep(8)
        rest_cpu_s, rest_mib = usage(operator)
        await asyncio.sleep(10)
        measured(f"operator at rest: {rest_mib:.0f} MiB, {10 * (usage(operator)[0] - rest_cpu_s):.1f} % of a core")

        single: list[float] = []
        for number in range(20):
            sent_s = await apply_all(client, team, [f"single-{number}"], at_once=1)
            await asyncio.to_thread(
                wait_for, "its ReplicaSet", lambda number=number: f"single-{number}" in arrivals.seen_s, 30, 0.002
            )
            single.append(arrivals.seen_s[f"single-{number}"] - sent_s[f"single-{number}"])
            await asyncio.sleep(0.3)
        measured(f"one service, apply to ReplicaSet: {percentiles(single)}")

        cpu_s = usage(operator)[0]
        names = [f"burst-{number}" for number in range(BURST)]
        sent_s = await apply_all(client, team, names, at_once=16)
        await asyncio.to_thread(
            wait_for, "all ReplicaSets", lambda: all(name in arrivals.seen_s for name in names), 120
        )
        measured(f"burst of {BURST}: {percentiles([arrivals.seen_s[name] - sent_s[name] for name in names])}")
        arrivals.close()

        rest = [f"more-{number}" for number in range(SERVICES - BURST - 20)]
        await apply_all(client, team, rest, at_once=8)
        total = SERVICES if rest else BURST + 20
        await asyncio.to_thread(_wait_all_ready, team, total, 600)
        cpu_s = usage(operator)[0] - cpu_s
        measured(
            f"{total} services: {1000 * cpu_s / (BURST + len(rest)):.0f} ms CPU each, {usage(operator)[1]:.0f} MiB"
        )
        await asyncio.to_thread(
            wait_for, "all Services", lambda: len(team.kubectl("get", "services", "-o", "name").split()) == total, 120
        )
        await asyncio.sleep(5)
        writes = operator.writes()
        await asyncio.sleep(REST_S)
        assert operator.writes() == writes, "nothing is written at rest"
        measured(f"{total} services: 0 writes in {REST_S:.0f} s at rest")
        assert operator.stop() == 0, operator.log[-3000:]
    with OperatorProcess(team.cluster, team.namespace, tmp_path, identity="two") as operator:
        found = await asyncio.to_thread(
            wait_for,
            "it has looked at all",
            lambda: re.search(r"first pass after ([\d.]+) s", operator.log),
            pause_s=0.05,
        )
        listed = re.search(r"services listed in ([\d.]+) s", operator.log)
        assert listed is not None
        restart_s = float(listed[1]) + float(found[1])
        early = operator.writes()
        await asyncio.sleep(REST_S)
        measured(
            f"restart with {total} services: reconciled {restart_s:.1f} s after the lead, {early:.0f} writes, "
            f"{operator.writes():.0f} after {REST_S:.0f} s more, {usage(operator)[1]:.0f} MiB"
        )
        assert operator.writes() <= 70


def _wait_all_ready(team: Team, count: int, timeout_s: float) -> None:
    def are_ready() -> bool:
        phases = team.kubectl("get", "pf", "-o", "jsonpath={.items[*].status.phase}").split()
        return phases.count("Ready") == count

    wait_for(f"{count} services are ready", are_ready, timeout_s, 1.0)
