"""What the autoscaler takes with many services: CPU and memory, with engines that only report.

`PAGEFLEET_SCALE_SERVICES=200 PAGEFLEET_SCALE_REST_S=120 pytest tests/autoscaler/on_api_server/test_overhead.py`
measures the large reading; by default 20 services for a short time, which only shows that it runs.
"""

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pagefleet.api.client import KubernetesClient
from tests.autoscaler.fake_engines import FakeEngines
from tests.autoscaler.on_api_server.fleet import AutoscalerProcess, Fleet, wait_until
from tests.cluster.cluster import Cluster
from tests.operator.test_scale import metric, usage

SERVICES = int(os.environ.get("PAGEFLEET_SCALE_SERVICES", "20"))
REST_S = float(os.environ.get("PAGEFLEET_SCALE_REST_S", "20"))
WARM_S = 20.0 if SERVICES < 100 else 60.0
REPLICAS = 3
RATES_PER_S = (0.0, 0.5, 4.0, 12.0)
"""Of each fourth of the services."""

pytestmark = pytest.mark.timeout(600 + 2 * REST_S)


async def test_many_services(
    crd_cluster: Cluster, client: KubernetesClient, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    with crd_cluster.namespace("overhead", wait=False) as namespace:
        async with FakeEngines(SERVICES * REPLICAS) as engines:
            fleet = Fleet(client, namespace, engines)
            names = [f"chat-{number}" for number in range(SERVICES)]
            for begin in range(0, SERVICES, 10):
                await asyncio.gather(
                    *(fleet.serve(name, replicas=REPLICAS, minReplicas=REPLICAS) for name in names[begin : begin + 10])
                )
            load = asyncio.ensure_future(_load(fleet, names))
            with AutoscalerProcess(
                crd_cluster, namespace, tmp_path, PAGEFLEET_DECISION_LOG=str(tmp_path / "decisions.jsonl")
            ) as process:
                await wait_until("it decides", lambda: _ticks(process, 2))
                await asyncio.sleep(WARM_S)
                before_s, _ = usage(process)
                writes, ticks = process.writes(), await _ticks(process, 0)
                await asyncio.sleep(REST_S)
                cpu_s, mib = usage(process)
                share = (cpu_s - before_s) / REST_S
                ticks = await _ticks(process, 0) - ticks
                measured(
                    f"{SERVICES} services of {REPLICAS} replicas: {100 * share:.1f} % of a core, {mib:.0f} MiB, "
                    f"{(process.writes() - writes) / REST_S:.1f} writes/s, {ticks:.0f} ticks in {REST_S:.0f} s"
                )
                answered = metric(process, "pagefleet_autoscaler_scrapes_total")
                assert answered >= SERVICES * REPLICAS
                assert ticks >= REST_S / 5.0 * 0.5, "it keeps its pace"
                assert process.stop() == 0
            load.cancel()


async def _load(fleet: Fleet, names: list[str]) -> None:
    """Let each service have a rate that varies, as real ones do."""
    dice = random.Random(1)
    while True:
        await asyncio.sleep(2.0)
        for number, name in enumerate(names):
            rate_per_s = RATES_PER_S[number % len(RATES_PER_S)] * dice.uniform(0.6, 1.4)
            for address in fleet.addresses[name]:
                fleet.engines.serve_requests(address, round(rate_per_s * 2.0 / REPLICAS))


async def _ticks(process: AutoscalerProcess, least: int) -> float:
    count = await asyncio.to_thread(metric, process, "pagefleet_autoscaler_tick_seconds_count")
    return count if count >= least else 0.0
