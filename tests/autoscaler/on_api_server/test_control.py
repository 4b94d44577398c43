"""The real autoscaler against a real API server, with engines that only report."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pagefleet.api.client import KubernetesClient
from pagefleet.api.resources import INFERENCE_SERVICES, LEASES
from pagefleet.autoscaler.decide import decide
from pagefleet.autoscaler.decision_record import read_records
from pagefleet.autoscaler.state import State
from tests.autoscaler.fake_engines import FakeEngines, http
from tests.autoscaler.on_api_server.fleet import AutoscalerProcess, Fleet, wait_until
from tests.cluster.cluster import Cluster

HORIZONTAL_POD_AUTOSCALER = """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: theirs}
spec:
  scaleTargetRef: {apiVersion: serving.pagefleet.io/v1alpha1, kind: InferenceService, name: theirs}
  minReplicas: 3
  maxReplicas: 5
"""
"""It finds no metrics here, and still keeps its least number over the scale subresource."""

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
async def fleet(crd_cluster: Cluster, client: KubernetesClient) -> AsyncIterator[Fleet]:
    with crd_cluster.namespace("autoscaler", wait=False) as namespace:
        async with FakeEngines(12) as engines:
            yield Fleet(client, namespace, engines)


@pytest.fixture
def process(crd_cluster: Cluster, fleet: Fleet, tmp_path: Path) -> Iterator[AutoscalerProcess]:
    with AutoscalerProcess(crd_cluster, fleet.namespace, tmp_path) as running:
        yield running
        if "Traceback" in running.log:
            pytest.fail(running.log)


@asynccontextmanager
async def loaded(fleet: Fleet, rate_per_s: float, *names: str) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(fleet.load(rate_per_s, name)) for name in names]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


async def test_a_rising_load_is_followed_explained_and_can_be_replayed(
    fleet: Fleet, process: AutoscalerProcess, crd_cluster: Cluster, tmp_path: Path
) -> None:
    await fleet.serve("chat", replicas=1)
    await fleet.serve("advised", replicas=1, mode="Recommend")
    await fleet.serve("paused", replicas=1, pauseScaleUp=True)
    await fleet.serve("plain", replicas=1, is_autoscaled=False)
    await fleet.serve("theirs", replicas=1, mode="Off")
    crd_cluster.kubectl("apply", "-n", fleet.namespace, "-f", "-", input=HORIZONTAL_POD_AUTOSCALER)
    async with loaded(fleet, 60, "chat", "advised", "paused"):
        await wait_until("all of them", lambda: _has_replicas(fleet, "chat", 8))
        status = await wait_until("the last step is told", lambda: _status_with(fleet, "chat", desired=8))
        advice = await wait_until("advice", lambda: _status_with(fleet, "advised", reason="Backlog"))
        paused = await wait_until("a pause", lambda: _status_with(fleet, "paused", limitedBy="pausedScaleUp"))
        plain = await wait_until("signals alone", lambda: _status_with(fleet, "plain", mode="Off"))
        await wait_until("an HPA scales in mode Off", lambda: _has_replicas(fleet, "theirs", 3))

    assert (status["mode"], status["lastDecisions"][0]["toReplicas"]) == ("Active", 8)
    steps = [(one["fromReplicas"], one["toReplicas"]) for one in reversed(status["lastDecisions"])]
    assert steps[0][0] == 1
    assert [after for _, after in steps[:-1]] == [before for before, _ in steps[1:]], "each goes on from the one before"
    assert re.search(r"\d+ requests", status["lastDecisions"][0]["message"]), status
    assert status["signals"]["reportingReplicas"] == 1
    assert status["signals"]["requestsPerSecond"] == pytest.approx(60, rel=0.3)
    assert {reason for reason, _ in await fleet.events()} == {"ScaledUp"}

    assert (advice["mode"], await fleet.replicas("advised")) == ("Recommend", 1)
    assert (advice["desired"], advice["counterfactual"]) == (3, f"{_unlimited(advice)} without upStep")
    assert (await fleet.replicas("paused"), paused["desired"]) == (1, 1)
    assert (await fleet.status("theirs"))["mode"] == "Off"
    assert (set(plain) - {"conditions", "lastDecisions"}) == {"mode", "signals"}
    header, line = crd_cluster.kubectl("get", "pf", "chat", "-n", fleet.namespace).stdout.splitlines()
    assert [line[header.index(column) :].split()[0] for column in ("KV%", "QUEUE")] == ["0", "0"]

    metrics = process.get("/metrics")
    series = f'namespace="{fleet.namespace}",service="chat"'
    assert re.search(rf"pagefleet_autoscaler_desired_replicas{{{series}}} 8.0", metrics)
    assert re.search(r'pagefleet_autoscaler_services{mode="Recommend"} 1.0', metrics)
    assert process.writes() >= 3
    assert process.get("/healthz") == "ok"

    await fleet.client.delete(INFERENCE_SERVICES, fleet.namespace, "chat")
    await wait_until("its series go", lambda: _lacks(process, series))
    assert process.stop() == 0, process.log[-3000:]
    _assert_replays(process.log)

    before = await fleet.status("advised")
    lease = await fleet.client.get(LEASES, fleet.namespace, "pagefleet-autoscaler")
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == ""
    with AutoscalerProcess(crd_cluster, fleet.namespace, tmp_path, identity="two") as second:
        await wait_until("it decides", lambda: _says(second, '"state":'))
        assert second.stop() == 0, second.log[-3000:]
    assert (await fleet.status("advised"))["lastDecisions"] == before["lastDecisions"]


async def test_another_writer_is_left_alone_and_named(fleet: Fleet, process: AutoscalerProcess) -> None:
    await fleet.serve(replicas=2)
    await wait_until("it decides", lambda: _status_with(fleet, "chat", mode="Active"))
    await fleet.scale(5)
    status = await wait_until("the conflict", lambda: _status_with(fleet, "chat", mode="Conflict"))
    assert "Conflict" in status["conditions"]
    assert "kubectl-scale set spec.replicas to 5 where the autoscaler had 2" in status["message"]
    async with loaded(fleet, 60, "chat"):
        wanted = await wait_until("more is wanted", lambda: _status_with(fleet, "chat", reason="Backlog"))
        assert wanted["mode"] == "Conflict"
        assert await fleet.replicas() == 5
        await fleet.set_mode("Recommend")
        await wait_until("it only advises", lambda: _status_with(fleet, "chat", mode="Recommend"))
        assert await fleet.replicas() == 5
        await fleet.set_mode("Active")
        await wait_until("it goes on from there", lambda: _has_replicas(fleet, "chat", 8))
    told = await fleet.events()
    assert [reason for reason, _ in told] == ["Conflict", "ScaledUp"], told


async def test_nonsense_and_silence_are_never_taken_for_idle(fleet: Fleet, process: AutoscalerProcess) -> None:
    await fleet.serve(replicas=3, minReplicas=1)
    always = {"from": "00:00", "to": "24:00"}
    zones = [{**always, "timeZone": "Mars/Crater", "minReplicas": 5}, {**always, "minReplicas": 2}]
    await fleet.serve("scheduled", replicas=1, schedule=zones)
    first, second, third = fleet.addresses["chat"]
    async with loaded(fleet, 6, "chat"):
        await wait_until("all report", lambda: _status_with(fleet, "chat", mode="Active"))
        fleet.engines.reports[second] = http(b'{"phase": "Ready", "blocks_total": -5}')
        fleet.engines.reports[third] = None
        fleet.addresses["chat"] = [first]
        status = await wait_until("they are silent", lambda: _status_with(fleet, "chat", conditions=["SignalMissing"]))
    assert (status["signals"]["reportingReplicas"], status["signals"]["silentReplicas"]) == (1, 2)
    assert await fleet.replicas() >= 3
    await wait_until("the part of a schedule that makes sense", lambda: _has_replicas(fleet, "scheduled", 2))
    scheduled = await wait_until("the rest is told", lambda: _status_with(fleet, "scheduled", desired=2))
    assert "ScheduleIgnored" in scheduled["conditions"]
    assert "the schedule asks for 2 from 00:00" in scheduled["lastDecisions"][0]["message"]
    assert "timeZone Mars/Crater is not known" in scheduled["message"]
    metrics = process.get("/metrics")
    for outcome in ("answered", "late", "garbage"):
        found = re.search(rf'pagefleet_autoscaler_scrapes_total{{outcome="{outcome}"}} ([\d.]+)', metrics)
        assert found is not None
        assert float(found[1]) >= 1, outcome


async def test_a_dead_leader_is_replaced_and_nothing_is_scaled_for_it(
    crd_cluster: Cluster, fleet: Fleet, tmp_path: Path
) -> None:
    await fleet.serve(replicas=4)
    settings = {"PAGEFLEET_LEASE_DURATION": "3"}
    with (
        AutoscalerProcess(crd_cluster, fleet.namespace, tmp_path, identity="one", **settings) as one,
        AutoscalerProcess(crd_cluster, fleet.namespace, tmp_path, identity="two", **settings) as two,
    ):
        leader, follower = await wait_until("one leads", lambda: _leading(one, two))
        await wait_until("it decides", lambda: _status_with(fleet, "chat", mode="Active"))
        assert not follower.is_leading
        leader.kill()
        await wait_until("the other one decides", lambda: _says(follower, '"state":'))
        assert follower.stop() == 0, follower.log[-3000:]
    assert await fleet.replicas() == 4, "four were wanted before, for all that the new leader knows"


def _assert_replays(log: str) -> None:
    """Decide again from the log alone, and compare."""
    states: dict[str, State] = {}
    snapshots: dict[str, Any] = {}
    count = 0
    for record in read_records(log.splitlines()):
        state = states[record.uid] if record.state is None else record.state
        for snapshot in record.skipped_snapshots(snapshots[record.uid]) if record.skipped_s else ():
            _, state = decide(snapshot, state, record.settings)
        decision, state = decide(record.snapshot, state, record.settings)
        states[record.uid], snapshots[record.uid] = state, record.snapshot
        assert (decision.desired, decision.reason) == (record.decision.desired, record.decision.reason)
        count += 1
    assert count >= 6


def _unlimited(status: dict[str, Any]) -> int:
    return int(status["counterfactual"].split()[0])


async def _status_with(fleet: Fleet, name: str, **expected: Any) -> dict[str, Any]:
    status = await fleet.status(name)
    return status if all(status.get(key) == value for key, value in expected.items()) else {}


async def _has_replicas(fleet: Fleet, name: str, replicas: int) -> bool:
    return await fleet.replicas(name) == replicas


async def _lacks(process: AutoscalerProcess, series: str) -> bool:
    return series not in await asyncio.to_thread(process.get, "/metrics")


async def _says(process: AutoscalerProcess, words: str) -> bool:
    return words in process.log


async def _leading(
    one: AutoscalerProcess, two: AutoscalerProcess
) -> tuple[AutoscalerProcess, AutoscalerProcess] | None:
    return (one, two) if one.is_leading else (two, one) if two.is_leading else None
