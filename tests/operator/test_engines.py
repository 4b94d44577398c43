"""`pagefleet.operator.engines`: questions to a pod that starts, on a loopback address of its own."""

import asyncio
import time

from pagefleet.api.capacity import CapacityReport, EnginePhase
from pagefleet.operator.engines import EngineWatch
from pagefleet.operator.plan.settings import ADMIN_PORT
from pagefleet.operator.store import ServiceKey
from tests.operator.builders import pod

ADDRESS = "127.0.0.77"
KEY = ServiceKey("team", "chat")
POLL_S = 0.1


async def test_an_engine_that_makes_no_sense_is_asked_less_and_less_and_heard_when_it_speaks() -> None:
    asked: list[float] = []
    is_open = False
    report = CapacityReport(phase=EnginePhase.STARTING, detail="Loading").model_dump_json().encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(time.monotonic())
        await reader.readuntil(b"\r\n\r\n")
        body = report if is_open else b"not yet"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    changed: list[ServiceKey] = []
    watch = EngineWatch(clock=time.monotonic, on_change=changed.append, poll_s=POLL_S)
    starting = pod("a", phase="Running", ip=ADDRESS, is_running=True)
    watch.update(KEY, starting, False)
    async with await asyncio.start_server(answer, ADDRESS, ADMIN_PORT):
        running = asyncio.ensure_future(watch.run())
        try:
            await asyncio.sleep(16 * POLL_S)
            assert 2 <= len(asked) <= 5, "at 0, 1, 3, 7 and 15 pauses"
            assert watch.progress_of(starting.uid) is None
            is_open = True
            async with asyncio.timeout(100 * POLL_S):
                while not changed:  # noqa: ASYNC110 - what it waits for is a list
                    await asyncio.sleep(POLL_S / 4)
        finally:
            running.cancel()
    progress = watch.progress_of(starting.uid)
    assert progress is not None
    assert (progress.report.detail, changed) == ("Loading", [KEY])
