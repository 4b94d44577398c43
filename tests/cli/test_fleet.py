"""`pagefleet.cli.play.fleet`: real engine processes (without a model) that start, crash, refuse, drain and change."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from pagefleet.api.v1alpha1 import ServicePhase
from pagefleet.cli.play import replica as lives
from pagefleet.cli.play.fleet import Fleet, LocalService
from pagefleet.cli.play.plan import WantedService
from pagefleet.cli.play.runner import ReplicaRunner, RunnerSettings
from pagefleet.cli.play.scaling import ScalingTerms

FAKE_ENGINE = str(Path(__file__).with_name("fake_engine.py"))
PATIENCE_S = 90.0


class Machine:
    """A fleet on this machine, and what a test says to it and sees of it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        settings = RunnerSettings(FAKE_ENGINE, folder, poll_interval_s=0.05, drain_timeout_s=0.5)
        self.fleet = Fleet(replace(settings, **options))

    def behave(self, version: str = "v1", **behaviour: Any) -> None:
        """Say how engines of a version behave from their next start on."""
        (self.folder / f"{version}.json").write_text(json.dumps({"version": version, **behaviour}))

    def want(
        self, replicas: int = 1, version: str = "v1", name: str = "chat", scaling: ScalingTerms | None = None
    ) -> LocalService:
        model = str(self.folder / f"{version}.json")

        def render(port: int, admin_port: int, share: float) -> list[str]:
            ports = ["--port", str(port), "--admin-port", str(admin_port)]
            return ["engine", "serve", model, *ports, "--served-model-name", name, "--share", f"{share:g}"]

        return LocalService(WantedService(name, name, replicas, (version,)), render, scaling)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {self.fleet.views()}"
            await asyncio.sleep(0.02)

    async def until_ready(self, count: int, name: str = "chat") -> None:
        await self.until(lambda: len(self.fleet.ready_replicas(name)) == count, f"{count} ready")

    def phase(self) -> ServicePhase:
        return self.fleet.views()[0].phase

    def pids(self) -> list[int]:
        """Return the processes of engines that live."""
        file = self.folder / "pids"
        pids = [int(line) for line in file.read_text().split()] if file.exists() else []
        return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]

    def starts(self) -> int:
        file = self.folder / "pids"
        return len(file.read_text().split()) if file.exists() else 0

    async def version(self) -> str:
        """Ask a replica; as the router does, ask again when it left between the choice and the answer."""
        for is_last in (False, True):
            url = self.fleet.ready_replicas("chat")[0].url
            async with httpx.AsyncClient(trust_env=False) as client:
                try:
                    response = await client.post(f"{url}/v1/chat/completions", json={"model": "chat"})
                except httpx.TransportError:
                    if is_last:
                        raise
                else:
                    if response.status_code == 503 and not is_last:  # it drains
                        continue
                    return str(response.json()["version"])
        raise AssertionError("not reached")


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    one = Machine(tmp_path)
    one.behave()
    yield one
    one.fleet.kill()
    await one.fleet.close()
    assert one.pids() == []


async def test_start_scale_and_remove(machine: Machine) -> None:
    machine.behave(load_s=0.3)
    machine.fleet.apply([machine.want(1)])
    await machine.until(lambda: machine.fleet.situation("chat") == "Downloading 63 %", "progress")
    await machine.until_ready(1)
    (first,) = machine.fleet.ready_replicas("chat")
    machine.fleet.apply([machine.want(2)])
    await machine.until_ready(2)
    assert first in machine.fleet.ready_replicas("chat")  # scaling restarts nothing
    arguments = [json.loads(line)[-1] for line in (machine.folder / "arguments").read_text().splitlines()]
    assert arguments == ["1", "0.5"]
    machine.fleet.apply([machine.want(0)])
    await machine.until(lambda: not machine.pids(), "all stopped")
    assert machine.phase() is ServicePhase.STOPPED
    machine.fleet.apply([])
    assert machine.fleet.models() == []


async def test_a_change_takes_over_without_a_gap(machine: Machine) -> None:
    machine.behave("v2", load_s=1.0)
    machine.fleet.apply([machine.want()])
    await machine.until_ready(1)
    machine.fleet.apply([machine.want(version="v2")])
    await machine.until(lambda: machine.phase() is ServicePhase.UPDATING, "updating")
    versions = set()
    while len(machine.pids()) > 1 or machine.phase() is not ServicePhase.READY:
        versions.add(await machine.version())
    versions.add(await machine.version())
    assert versions == {"v1", "v2"}
    assert await machine.version() == "v2"


async def test_a_change_that_cannot_start_keeps_what_served(machine: Machine) -> None:
    machine.behave("v2", refuses="The weights do not fit: 9 GiB of 8 GiB.")
    machine.fleet.apply([machine.want()])
    await machine.until_ready(1)
    machine.fleet.apply([machine.want(version="v2")])
    await machine.until(lambda: machine.phase() is ServicePhase.DEGRADED, "degraded")
    assert "The weights do not fit: 9 GiB of 8 GiB." in machine.fleet.views()[0].message
    assert await machine.version() == "v1"


async def test_the_users_mistake_is_not_started_again(machine: Machine) -> None:
    machine.behave(refuses="--block-size 0 is too small.")
    machine.fleet.apply([machine.want()])
    await machine.until(lambda: machine.phase() is ServicePhase.FAILED, "failed")
    view = machine.fleet.views()[0]
    assert view.message == f"--block-size 0 is too small. (log: {machine.folder / 'chat-1.log'})"
    await asyncio.sleep(0.3)
    assert machine.starts() == 1
    machine.fleet.apply([machine.want(version="v1")])  # the same again changes nothing
    await asyncio.sleep(0.1)
    assert machine.starts() == 1
    machine.behave("v2")
    machine.fleet.apply([machine.want(version="v2")])
    await machine.until_ready(1)
    assert machine.phase() is ServicePhase.READY


async def test_a_crash_starts_again_after_a_growing_wait(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "FIRST_BACK_OFF_S", 0.2)
    machine.behave(crash_after_s=0.1)
    machine.fleet.apply([machine.want()])
    await machine.until(
        lambda: "ended with code 1: the fake core crashed" in machine.fleet.views()[0].message, "reason"
    )
    await machine.until(lambda: machine.fleet.views()[0].crashes_in_a_row == 2, "crashes")
    machine.behave()
    await machine.until_ready(1)
    assert machine.fleet.views()[0].restarts == 2


async def test_a_killed_replica_is_replaced(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "FIRST_BACK_OFF_S", 0.1)
    machine.fleet.apply([machine.want()])
    await machine.until_ready(1)
    os.kill(machine.pids()[0], signal.SIGKILL)
    await machine.until(lambda: machine.fleet.views()[0].restarts == 1, "restart")
    await machine.until_ready(1)


async def test_draining_waits_for_requests_in_flight(machine: Machine) -> None:
    machine.behave(tokens=8, token_s=0.05)
    machine.fleet.apply([machine.want()])
    await machine.until_ready(1)
    url = machine.fleet.ready_replicas("chat")[0].url
    async with (
        httpx.AsyncClient(trust_env=False) as client,
        client.stream("POST", f"{url}/v1/chat/completions", json={"model": "chat", "stream": True}) as response,
    ):
        lines = response.aiter_lines()
        await anext(lines)
        machine.fleet.apply([])
        assert machine.fleet.models() == []
        rest = [line async for line in lines]
    assert "data: [DONE]" in rest
    await machine.until(lambda: not machine.fleet.views(), "gone")


async def test_one_too_many_finishes_its_requests_or_is_called_back(machine: Machine) -> None:
    machine.behave(tokens=20, token_s=0.05)
    machine.fleet.apply([machine.want(2)])
    await machine.until_ready(2)
    first, second = machine.fleet.ready_replicas("chat")
    async with httpx.AsyncClient(trust_env=False) as client:

        async def ask(replica: ReplicaRunner) -> bool:
            body = {"model": "chat", "stream": True}
            return "[DONE]" in (await client.post(f"{replica.url}/v1/chat/completions", json=body)).text

        answers = [asyncio.create_task(ask(one)) for one in (first, first, second)]
        await machine.until(lambda: (first.requests_in_flight, second.requests_in_flight) == (2, 1), "requests")
        machine.fleet.apply([machine.want(1)])
        assert machine.fleet.ready_replicas("chat") == [first]
        await machine.until(lambda: second.report is not None and second.report.draining, "it drains")
        machine.fleet.apply([machine.want(2)])
        await machine.until_ready(2)
        assert machine.starts() == 2, "called back, and none started"
        machine.fleet.apply([machine.want(1)])
        assert all(await asyncio.gather(*answers))
    await machine.until(lambda: len(machine.pids()) == 1, "the one too many ends")
    assert machine.fleet.ready_replicas("chat") == [first]


async def test_one_too_many_ends_at_its_deadline(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagefleet.cli.play.runner.KILL_GRACE_S", 0.1)
    machine.behave(tokens=10_000, token_s=0.05)
    machine.fleet.apply([machine.want()])
    await machine.until_ready(1)
    (replica,) = machine.fleet.ready_replicas("chat")
    async with (
        httpx.AsyncClient(trust_env=False) as client,
        client.stream("POST", f"{replica.url}/v1/chat/completions", json={"stream": True}) as response,
    ):
        lines = response.aiter_lines()
        await anext(lines)
        await machine.until(lambda: replica.requests_in_flight == 1, "in flight")
        machine.fleet.apply([machine.want(0)])
        await machine.until(lambda: not machine.pids(), "ended")


async def test_a_replica_that_does_not_drain_in_time_is_killed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagefleet.cli.play.runner.KILL_GRACE_S", 0.1)
    machine.behave(ignores_sigterm=True)
    machine.fleet.apply([machine.want()])
    await machine.until_ready(1)
    started = time.monotonic()
    await machine.fleet.close()
    assert 0.5 <= time.monotonic() - started < 30
    assert machine.pids() == []


async def test_what_is_stopped_while_it_starts_leaves_nothing(machine: Machine) -> None:
    machine.fleet.apply([machine.want(3)])
    machine.fleet.apply([])
    await machine.until(lambda: not machine.fleet.views(), "gone")
    assert machine.pids() == []


async def test_services_are_independent(machine: Machine) -> None:
    machine.behave("v2", refuses="no")
    machine.fleet.apply([machine.want(name="chat"), machine.want(name="code", version="v2")])
    await machine.until_ready(1)
    await machine.until(lambda: machine.fleet.views()[1].phase is ServicePhase.FAILED, "failed")
    assert machine.fleet.models() == ["chat", "code"]
    assert machine.fleet.situation("code").startswith("no (log: ")


async def test_changes_are_announced(tmp_path: Path) -> None:
    failed = asyncio.Event()

    def look() -> None:
        if fleet.views()[0].phase is ServicePhase.FAILED:
            failed.set()

    machine = Machine(tmp_path)
    machine.behave(refuses="no")
    fleet = Fleet(RunnerSettings(FAKE_ENGINE, tmp_path), look)
    fleet.apply([machine.want()])
    await asyncio.wait_for(failed.wait(), PATIENCE_S)
    await fleet.close()


async def test_a_hung_engine_is_started_again(machine: Machine) -> None:
    machine.behave(hangs_after_s=0.5)
    machine.fleet.apply([machine.want()])
    await machine.until(lambda: "hung and was ended" in machine.fleet.views()[0].message, "the reason is told")
    await machine.until(lambda: machine.starts() == 2, "a second start")
