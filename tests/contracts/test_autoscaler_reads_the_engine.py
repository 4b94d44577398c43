"""The autoscaler asks a real engine under load: what it reads becomes signals, a learned speed and a decision."""

import asyncio
import time
from pathlib import Path

import httpx

from pagefleet.autoscaler.records import PodRecord, ServiceKey, read_service
from pagefleet.autoscaler.scrape import Outcome, Quality, Scraper, Target
from pagefleet.autoscaler.service_memory import ServiceMemory, Step
from pagefleet.autoscaler.store import Store
from tests.autoscaler.cluster_objects import service_object
from tests.support.engine_server import EngineServer
from tests.support.tiny_models import make_tiny_model

POD_UID = "pod-1234"
"""What `EngineServer` tells its engine."""
SERVICE = read_service(
    service_object(replicas=1, autoscaling={"mode": "Active", "maxReplicas": 4, "slo": {"ttft": "2s", "itl": "1s"}})
)
POD = PodRecord(
    service=ServiceKey("team", "chat"),
    name="chat-1",
    uid=POD_UID,
    created_s=0.0,
    is_ready=True,
    ready_changed_s=None,
    ip="127.0.0.1",
    is_leaving=False,
)


async def test_a_real_engine_is_read_under_load_and_the_load_is_seen(tmp_path: Path) -> None:
    with EngineServer(make_tiny_model(tmp_path)) as engine:
        await asyncio.to_thread(engine.wait_ready)
        scraper = Scraper(clock=time.monotonic, timeout_s=10.0, port=int(engine.admin_url.rsplit(":", 1)[1]))
        memory = ServiceMemory(SERVICE)

        async def tick() -> Step:
            await scraper.ask([Target(POD_UID, "127.0.0.1", 2.0, 1.0)])
            known = scraper.known(POD_UID)
            assert known is not None
            assert known.quality is Quality.FRESH, known.fault
            assert known.report is not None
            now_s = time.monotonic()
            replica = Store().replica(POD, now_s, known.reading)
            return memory.step(SERVICE, (replica,), [known.report], now_s=now_s, hold=None)

        idle = await tick()
        async with httpx.AsyncClient(base_url=engine.url, timeout=60) as client:
            body = {"prompt": [7] * 40, "max_tokens": 20, "ignore_eos": True}
            asked = [asyncio.ensure_future(client.post("/v1/completions", json=body)) for _ in range(30)]
            await asyncio.sleep(0.3)
            busy = await tick()
            answers = await asyncio.gather(*asked)
        assert all(answer.is_success for answer in answers)
        last = await tick()
        await scraper.close()

    assert scraper.outcomes == {Outcome.ANSWERED: 3}
    signals = memory.status(last).signals
    assert signals is not None
    assert (signals.reporting_replicas, signals.silent_replicas, signals.queue_depth, signals.running) == (1, 0, 0, 0)
    assert (signals.requests_per_second or 0) > 0
    totals = memory.state.totals[-1]
    assert (totals.arrivals, totals.finished, totals.first_tokens) == (30, 30, 30)
    assert (totals.prompt_tokens, totals.finished_output_tokens) == (30 * 40, 30 * 20)
    assert (memory.state.prompt_tokens, memory.state.output_tokens) == (40, 20)
    assert idle.settings.speed is not None
    assert idle.settings.speed.block_size == 16, "as the engine has it: nothing was planned"
    assert busy.decision is not None
    assert busy.snapshot.ready[0].reading is not None
