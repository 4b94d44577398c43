import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message, Receive

from pagefleet.engine.server.disconnect import ClientDisconnected, run_while_connected
from pagefleet.engine.server.streaming import EventStream, event


def receive_after(gone: asyncio.Event) -> Receive:
    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive


async def test_the_result_comes_through() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 5

    assert await run_while_connected(receive_after(asyncio.Event()), work()) == 5


async def test_an_error_comes_through() -> None:
    async def work() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        await run_while_connected(receive_after(asyncio.Event()), work())


async def test_work_is_cleaned_up_before_the_call_returns() -> None:
    gone = asyncio.Event()
    steps: list[str] = []

    async def work() -> None:
        try:
            gone.set()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            steps.append("cleaned up")

    with pytest.raises(ClientDisconnected):
        await run_while_connected(receive_after(gone), work())

    assert steps == ["cleaned up"]


async def test_cancelling_the_call_cancels_the_work() -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            steps.append("cleaned up")

    task = asyncio.ensure_future(run_while_connected(receive_after(asyncio.Event()), work()))
    await asyncio.sleep(0.01)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["cleaned up"]


async def test_a_stream_is_closed_even_if_the_client_goes_before_it_begins() -> None:
    gone = asyncio.Event()
    gone.set()
    closed: list[bool] = []

    async def events() -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(60)
        yield b""

    async def send(message: Message) -> None:
        await asyncio.sleep(60)

    stream = EventStream(events(), close=lambda: closed.append(True))
    await stream({"type": "http"}, receive_after(gone), send)

    assert closed == [True]


def test_an_event_is_one_line_for_every_client() -> None:
    data = event({"text": "a\u2028b\u2029c\x85d\ne\rf"})

    assert len(data.decode().splitlines()) == 2
    assert "\\u2028" in data.decode()
