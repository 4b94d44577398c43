"""The autoscaler's writes against a server that is slow, wrong, or faster than we are."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pagefleet.api.client import KubernetesClient
from pagefleet.api.client_errors import ApiError
from pagefleet.api.installed_schema import InstalledSchema
from pagefleet.api.retry import NEVER
from pagefleet.autoscaler.actuate import Actuator
from pagefleet.autoscaler.control import Control
from pagefleet.autoscaler.decision_log import DecisionLog
from pagefleet.autoscaler.metrics import AutoscalerMetrics
from pagefleet.autoscaler.process_settings import LoggedTicks
from pagefleet.autoscaler.scrape import Scraper
from pagefleet.autoscaler.store import Store
from tests.api.http_script import Reply, Script, playing
from tests.autoscaler.cluster_objects import service_object

AUTOSCALING = {"mode": "Active", "minReplicas": 3, "maxReplicas": 8}
"""One replica is fewer than the least, which needs no report to see."""
CONFLICT = Reply(409, json.dumps({"reason": "Conflict", "message": "the object has been modified"}).encode())
SCALED = Reply(body=json.dumps({"metadata": {"resourceVersion": "9"}, "spec": {"replicas": 3}}).encode())
DONE = Reply(body=b"{}")


def found(version: int, **more: Any) -> Reply:
    return Reply(body=json.dumps(stored(version, **more)).encode())


def stored(version: int, *, generation: int = 1, **more: Any) -> dict[str, Any]:
    item = service_object(replicas=1, version=version, autoscaling=AUTOSCALING, **more)
    item["metadata"]["generation"] = generation
    return item


@asynccontextmanager
async def acting(
    folder: Path, *replies: Reply, timeout_s: float = 5.0
) -> AsyncIterator[tuple[Script, Store, Actuator]]:
    store = Store()
    store.put_service(stored(1))
    async with (
        playing(*replies) as script,
        await KubernetesClient.connect(str(script.kubeconfig(folder)), retry=NEVER, timeout_s=timeout_s) as client,
    ):
        yield script, store, Actuator(client, store, InstalledSchema(), AutoscalerMetrics(), "test")


def control(store: Store, actuator: Actuator, *, tick_s: float = 5.0) -> Control:
    return Control(
        store,
        Scraper(clock=time.time, timeout_s=1.0),
        actuator,
        AutoscalerMetrics(),
        DecisionLog(lambda _: None, LoggedTicks.NONE),
        clock=time.time,
        tick_s=tick_s,
        status_interval_s=15.0,
    )


async def test_only_the_scale_is_written_and_bound_to_the_version_that_was_read(tmp_path: Path) -> None:
    async with acting(tmp_path, SCALED) as (script, store, actuator):
        assert await actuator.scale(store.services()[0], 3)
        (record,) = store.services()
    ((method, target, _, body),) = script.requests
    assert method == "PATCH"
    assert target.startswith("/apis/serving.pagefleet.io/v1alpha1/namespaces/team/inferenceservices/chat/scale?")
    assert "fieldManager=pagefleet-autoscaler" in target
    assert json.loads(body) == {"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 3}}
    assert (record.service.spec.replicas, record.version) == (3, "9")


async def test_a_status_that_moved_on_is_no_reason_to_give_up(tmp_path: Path) -> None:
    async with acting(tmp_path, CONFLICT, found(5), SCALED) as (script, store, actuator):
        assert await actuator.scale(store.services()[0], 3)
    assert json.loads(script.requests[-1][3])["metadata"] == {"resourceVersion": "5"}


@pytest.mark.parametrize(
    "replies",
    [
        (CONFLICT, found(5, generation=2)),
        (CONFLICT, Reply(404)),
        (Reply(404),),
        (CONFLICT, found(5), CONFLICT, found(6), CONFLICT, found(7)),
    ],
)
async def test_a_spec_that_somebody_changed_is_never_written_over(tmp_path: Path, replies: tuple[Reply, ...]) -> None:
    async with acting(tmp_path, *replies) as (script, store, actuator):
        assert not await actuator.scale(store.services()[0], 3)
    assert len(script.requests) == len(replies)


async def test_what_could_not_be_written_is_told_and_decided_again(tmp_path: Path) -> None:
    written = found(6)
    replies = (Reply(500), written, SCALED, found(12), Reply(201))
    async with acting(tmp_path, *replies) as (script, store, actuator):
        controlling = control(store, actuator)
        await controlling.tick()
        await controlling.tick()
        (record,) = store.services()
    bodies = [json.loads(body) for _, _, _, body in script.requests]
    assert bodies[0]["spec"] == bodies[2]["spec"] == {"replicas": 3}
    told = bodies[1]["status"]["autoscaling"]
    assert told["message"].startswith("1 to 3 replicas is decided, but could not be written: 500")
    assert told["lastDecisions"] == []
    assert [one["toReplicas"] for one in bodies[3]["status"]["autoscaling"]["lastDecisions"]] == [3]
    assert (bodies[4]["reason"], bodies[4]["type"]) == ("ScaledUp", "Normal")
    assert bodies[4]["involvedObject"]["uid"] == record.uid


async def test_a_server_that_hangs_holds_no_tick_up(tmp_path: Path) -> None:
    async with acting(tmp_path, Reply(hangs=True), timeout_s=60.0) as (_, store, actuator):
        controlling = control(store, actuator, tick_s=0.2)
        began_s = time.monotonic()
        await controlling.tick()
        assert time.monotonic() - began_s < 30.0
        (record,) = store.services()
    assert record.service.spec.replicas == 1


async def test_errors_reach_the_caller(tmp_path: Path) -> None:
    async with acting(tmp_path, Reply(403)) as (_, store, actuator):
        with pytest.raises(ApiError, match="403"):
            await actuator.scale(store.services()[0], 3)
