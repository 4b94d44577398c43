"""`pagefleet.cli.play.fleet` under load: processes (without a model) come and go by the autoscaler's decision.

The clock runs fast, so that windows of minutes pass in seconds. The decision and its constants are the real ones, but
for the age of a stale report, since this machine does not answer faster.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from pagefleet.api.capacity import CapacityReport
from pagefleet.api.v1alpha1 import InferenceService, ServicePhase
from pagefleet.autoscaler.decision import Reason
from pagefleet.autoscaler.service_settings import settings_of
from pagefleet.autoscaler.settings import Settings
from pagefleet.cli.play import replica as lives
from pagefleet.cli.play import scaling
from pagefleet.cli.play.fleet import LocalService
from pagefleet.cli.play.manifests import load
from pagefleet.cli.play.router import build_router, upstream_client
from pagefleet.cli.play.runner import ENGINE_PROGRAM
from pagefleet.cli.play.view import ScalingView
from tests.cli.test_fleet import Machine
from tests.cli.test_manifests import manifest
from tests.cli.test_router import serving
from tests.cli.test_scaling import terms
from tests.support.tiny_models import make_byte_level_tokenizer, make_tiny_llama

TIMES_FASTER = 60.0
START_S = 150.0
"""What fake engines tell of their start: 2.5 s of this machine, so that a slow one isn't taken for stuck."""
TOO_LATE_S = 60.0
STALE_AFTER_S = 2.0
"""Of this machine's seconds."""


class Site(Machine):
    """A machine with a router in front of it, and clients."""

    url = ""
    body: dict[str, Any] = {"model": "chat", "stream": True}  # noqa: RUF012 - no test changes it

    def behave(self, version: str = "v1", **behaviour: Any) -> None:
        super().behave(version, **{"told_start_s": START_S, "places": 2, "tokens": 6, "token_s": 0.05} | behaviour)

    def scaled(self, autoscaling: str, replicas: int = 1) -> LocalService:
        scaling = terms(autoscaling, replicas=replicas)
        return self.want(scaling.first_replicas(), scaling=scaling)

    def scaling(self) -> ScalingView:
        scaling = self.fleet.views()[0].scaling
        assert scaling is not None
        return scaling

    async def ask(self) -> str:
        """Return a whole answer, or what went wrong."""
        async with httpx.AsyncClient(trust_env=False, timeout=TOO_LATE_S) as client:
            response = await client.post(f"{self.url}/v1/chat/completions", json=self.body)
        is_whole = response.status_code == httpx.codes.OK and "[DONE]" in response.text
        return "whole" if is_whole else f"{response.status_code} {response.text}"

    @contextlib.asynccontextmanager
    async def load(self, clients: int) -> AsyncIterator[list[str]]:
        """Keep so many clients asking; the list has every answer."""
        answers: list[str] = []
        ends = asyncio.Event()

        async def keep_asking() -> None:
            while not ends.is_set():
                answers.append(await self.ask())

        asking = [asyncio.create_task(keep_asking()) for _ in range(clients)]
        try:
            yield answers
        finally:
            ends.set()
            await asyncio.gather(*asking)


@contextlib.asynccontextmanager
async def running(folder: Path, **options: Any) -> AsyncIterator[Site]:
    """Run a site, its router and its decisions."""
    clock = {"clock": lambda: TIMES_FASTER * time.monotonic(), "decision_interval_s": 5 / TIMES_FASTER}
    one = Site(folder, **clock, **options)
    async with upstream_client() as client, serving(build_router(one.fleet, client), []) as one.url:
        deciding = asyncio.create_task(one.fleet.keep_deciding())
        try:
            yield one
        finally:
            deciding.cancel()
            one.fleet.kill()
            await one.fleet.close()
            with contextlib.suppress(asyncio.CancelledError):
                await deciding
    assert one.pids() == []


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_patience(service: InferenceService, reports: Iterable[CapacityReport]) -> Settings | None:
        settings = settings_of(service, reports)
        return settings and replace(settings, stale_after_s=STALE_AFTER_S * TIMES_FASTER)

    monkeypatch.setattr(scaling, "settings_of", with_patience)
    monkeypatch.setattr(lives, "FIRST_BACK_OFF_S", 0.2)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running(tmp_path) as one:
        one.behave()
        yield one


async def test_load_brings_replicas_and_its_end_takes_them_without_losing_a_request(site: Site) -> None:
    site.fleet.apply([site.scaled("mode: Recommend, maxReplicas: 2")])
    await site.until_ready(1)
    async with site.load(4) as answers:
        await site.until(lambda: site.scaling().decision.desired == 2, "recommended")
        assert site.scaling().decision.reason is Reason.KV_OCCUPANCY
        assert len(site.pids()) == 1, "only told"
        site.fleet.apply([site.scaled("maxReplicas: 2")])
        await site.until_ready(2)
        await site.until(lambda: site.scaling().decision.limited_by == "maxReplicas", "the maximum limits")
        site.fleet.apply([site.scaled("maxReplicas: 3")])
        await site.until_ready(3)
    async with site.load(1) as later:
        await site.until(lambda: len(site.pids()) == 1, "scaled down")
        assert site.scaling().decision.desired == 1
    assert set(answers) | set(later) == {"whole"}
    assert site.starts() == 3


async def test_an_idle_service_stops_and_a_request_wakes_it(site: Site) -> None:
    idle = "maxReplicas: 1, scaleToZero: {idle: 60s}"
    site.fleet.apply([site.scaled(idle)])
    await site.until(lambda: site.starts() == 1 and not site.pids(), "asleep")
    assert site.fleet.views()[0].phase is ServicePhase.STOPPED
    assert site.scaling().decision.reason in (Reason.IDLE, Reason.STEADY)
    held = [asyncio.create_task(site.ask()) for _ in range(3)]
    leaving = asyncio.create_task(site.ask())
    await site.until(lambda: site.scaling().held_requests == 4, "held")
    leaving.cancel()
    await site.until(lambda: site.scaling().held_requests == 3, "a client that leaves is forgotten")
    assert await asyncio.gather(*held) == ["whole"] * 3
    assert site.starts() == 2

    await site.until(lambda: not site.pids(), "asleep again")
    site.behave(refuses="The weights do not fit.")
    answer = await site.ask()
    assert answer.startswith("503")
    assert "The weights do not fit." in answer


async def test_a_crash_while_scaling_up_loses_nothing(site: Site) -> None:
    site.fleet.apply([site.scaled("maxReplicas: 2")])
    await site.until_ready(1)
    site.behave(crash_after_s=0.1, load_s=60)
    async with site.load(3) as answers:
        await site.until(lambda: site.fleet.views()[0].restarts > 0, "the new one crashes")
        site.behave()
        await site.until_ready(2)
    assert set(answers) == {"whole"}


async def test_real_engines_come_and_go_with_the_load(tmp_path: Path) -> None:
    """Eight answers of 208 tokens fill the 32 blocks of one engine, and of two: both are needed until the load ends."""
    model = make_byte_level_tokenizer(make_tiny_llama(tmp_path / "model"))
    engine = "engine: {maxModelLen: 256, blockSize: 16, maxNumSeqs: 8}"
    file = tmp_path / "manifest.yaml"
    file.write_text(manifest(spec=f", {engine}, autoscaling: {{maxReplicas: 2}}", uri=f"file://{model}"))
    flags = ("--kv-cache-memory-bytes", str(32 * 16 * 256), "--dtype", "float32", "--threads", "1")
    async with running(tmp_path, engine_program=ENGINE_PROGRAM, drain_timeout_s=30.0) as site:
        site.body = {
            "model": "chat",
            "messages": [{"role": "user", "content": "hello"}],
            "stream": True,
            "max_tokens": 200,
            "ignore_eos": True,
        }
        site.fleet.apply(load([file], extra_flags=flags).services)
        await site.until_ready(1)
        async with site.load(8) as answers:
            await site.until_ready(2)
        async with site.load(1) as later:
            await site.until(lambda: len(site.fleet.ready_replicas("chat")) == 1, "one leaves")
    assert set(answers) | set(later) == {"whole"}
    assert len(answers) + len(later) >= 5
