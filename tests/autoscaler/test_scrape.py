"""`pagefleet.autoscaler.scrape` over real sockets: what is fresh, carried and missing, and that nothing hangs."""

import asyncio
import json
import time
from typing import Any

import pytest

from pagefleet.autoscaler.scrape import Outcome, Quality, Scraper, Target
from tests.autoscaler.fake_engines import FakeEngines, http, idle_report

TIMEOUT_S = 0.5


def targets(engines: FakeEngines) -> list[Target]:
    return [Target(f"uid-{number}", address, 2.0, 0.1) for number, address in enumerate(engines.addresses)]


def scraper() -> Scraper:
    return Scraper(clock=time.monotonic, timeout_s=TIMEOUT_S)


async def test_every_replica_is_asked_over_a_connection_that_is_kept() -> None:
    async with FakeEngines(20) as engines:
        asking = scraper()
        for _ in range(3):
            await asking.ask(targets(engines))
        assert set(engines.asked.values()) == {3}
        assert set(engines.connections.values()) == {1}
        known = asking.known("uid-7")
        assert known is not None
        assert (known.quality, known.source) == (Quality.FRESH, engines.addresses[7])
        assert known.reading is not None
        assert known.reading.blocks_total == 25_625
        age_s = known.age_s(time.monotonic())
        assert age_s is not None
        assert 0 <= age_s < 30
        assert asking.outcomes == {Outcome.ANSWERED: 60}
        await asking.close()


async def test_one_that_hangs_holds_nobody_up_and_its_report_ages() -> None:
    async with FakeEngines(3) as engines:
        asking = scraper()
        await asking.ask(targets(engines))
        before = asking.known("uid-1")
        assert before is not None
        read_s = before.read_s
        engines.reports[engines.addresses[1]] = None
        began_s = time.monotonic()
        await asking.ask(targets(engines))
        assert time.monotonic() - began_s < 20 * TIMEOUT_S
        hung, well = asking.known("uid-1"), asking.known("uid-2")
        assert hung is not None
        assert well is not None
        assert (hung.quality, hung.read_s, hung.fault) == (Quality.CARRIED, read_s, "no answer in 0.5 s")
        assert (well.quality, asking.outcomes[Outcome.LATE]) == (Quality.FRESH, 1)
        engines.reports[engines.addresses[1]] = idle_report()
        await asking.ask(targets(engines))
        assert (hung.quality, hung.fault) == (Quality.FRESH, None)
        await asking.close()


ENDLESS = b"HTTP/1.1 200 OK\r\nX: " + b"a" * 20_000
REPORT = idle_report()
NONSENSE: dict[str, tuple[bytes, str]] = {
    "no JSON": (http(b"hello"), "Invalid JSON"),
    "a list": (http(b"[]"), "be an object"),
    "negative": (http(json.dumps(REPORT | {"queue_depth": -1}).encode()), "queue_depth"),
    "huge": (http(json.dumps(REPORT | {"finished_total": 2**60}).encode()), "finished_total"),
    "not a number": (http(json.dumps(REPORT | {"queue_age_s": float("nan")}).encode()), "queue_age_s"),
    "more active than there are": (http(json.dumps(REPORT | {"blocks_active": 30_000}).encode()), "blocks_active"),
    "half": (http(json.dumps(REPORT | {"running": None}).encode()), "running is null"),
    "another pod's": (http(json.dumps(REPORT | {"pod_uid": "other"}).encode()), "of pod other"),
    "an error": (http(b"{}", status="500 Oops"), "HTTP 500"),
    "no HTTP": (b"SSH-2.0-OpenSSH\r\n\r\n", "no HTTP"),
    "no length": (b"HTTP/1.1 200 OK\r\n\r\n{}", "Content-Length"),
    "too long": (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", "Content-Length"),
    "a head without end": (ENDLESS, "no end of the head"),
}


@pytest.mark.parametrize("name", NONSENSE)
async def test_nonsense_is_counted_and_never_zero(name: str) -> None:
    answer, told = NONSENSE[name]
    async with FakeEngines(2) as engines:
        asking = scraper()
        await asking.ask(targets(engines)[:1])
        for address in engines.addresses:
            engines.reports[address] = answer
        await asking.ask(targets(engines))
        carried, missing = asking.known("uid-0"), asking.known("uid-1")
        assert carried is not None
        assert missing is not None
        assert (carried.quality, missing.quality) == (Quality.CARRIED, Quality.MISSING)
        assert carried.reading is not None
        assert missing.reading is None
        assert missing.read_s is None
        assert missing.age_s(5.0) is None
        assert told in (carried.fault or "")
        assert asking.outcomes[Outcome.GARBAGE] == 2
        await asking.close()


async def test_nobody_listens() -> None:
    async with FakeEngines(1) as engines:
        (target,) = targets(engines)
    asking = scraper()
    await asking.ask([target])
    known = asking.known("uid-0")
    assert known is not None
    assert (known.quality, asking.outcomes) == (Quality.MISSING, {Outcome.REFUSED: 1})


async def test_a_connection_that_the_engine_closed_is_opened_again() -> None:
    async with FakeEngines(1) as engines:
        asking, (address,) = scraper(), engines.addresses
        engines.reports[address] = http(json.dumps(REPORT).encode(), more="Connection: close\r\n")
        for _ in range(3):
            await asking.ask(targets(engines))
        assert asking.outcomes == {Outcome.ANSWERED: 3}
        assert engines.connections[address] == 3
        await asking.close()


async def test_a_namesake_with_a_new_address_is_asked_there_and_others_are_forgotten() -> None:
    async with FakeEngines(2) as engines:
        asking = scraper()
        await asking.ask([Target("uid-0", engines.addresses[0])])
        await asking.ask([Target("uid-0", engines.addresses[1])])
        known = asking.known("uid-0")
        assert known is not None
        assert known.source == engines.addresses[1]
        assert list(engines.asked.values()) == [1, 1]
        await asking.ask([])
        assert asking.known("uid-0") is None


async def test_an_engine_that_starts_reports_no_load() -> None:
    async with FakeEngines(1) as engines:
        asking = scraper()
        engines.reports[engines.addresses[0]] = {"phase": "Loading", "startup_stage_seconds": {"load": 3.0}}
        await asking.ask(targets(engines))
        known = asking.known("uid-0")
        assert known is not None
        assert known.report is not None
        assert (known.quality, known.reading) == (Quality.FRESH, None)
        await asking.close()


async def test_an_answer_in_pieces_is_put_together() -> None:
    whole = http(json.dumps(REPORT).encode())

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for begin in range(0, len(whole), 100):
            writer.write(whole[begin : begin + 100])
            await writer.drain()
            await asyncio.sleep(0.001)
        writer.close()
        await writer.wait_closed()

    server: Any = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        asking = Scraper(clock=time.monotonic, timeout_s=5.0, port=server.sockets[0].getsockname()[1])
        await asking.ask([Target("uid-0", "127.0.0.1")])
        assert asking.outcomes == {Outcome.ANSWERED: 1}
        await asking.close()
        await asyncio.sleep(0.05)  # for the other side to end
