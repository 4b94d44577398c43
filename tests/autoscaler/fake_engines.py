"""Engines without a model: many addresses of this machine, each with the admin port's `/capacity`."""

import asyncio
import json
import os
from typing import Any, Self

from pagefleet.api.capacity import CapacityReport
from pagefleet.autoscaler.scrape import ADMIN_PORT

_COUNTERS = [name for name in CapacityReport.model_fields if name.endswith("_total") and name != "blocks_total"]
_GAUGES = ("blocks_active", "blocks_cached", "tokens_active", "tokens_queued", "queue_depth", "running", "in_flight")
BOUNDS_S = (0.5, 1.0, 2.0, 5.0, 10.0)


def idle_report(**values: Any) -> dict[str, Any]:
    """Return what an engine says that has not been asked for anything yet."""
    histogram = {"bounds_s": BOUNDS_S, "counts": [0] * (len(BOUNDS_S) + 1)}
    return {
        "phase": "Ready",
        **dict.fromkeys([*_COUNTERS, *_GAUGES], 0),
        "step_seconds_total": 0.0,
        "queue_age_s": 0.0,
        "blocks_total": 25_625,
        "blocks_free": 25_625,
        "block_size": 16,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
        "ttft": histogram,
        "time_per_output_token": histogram,
        **values,
    }


def address_of(number: int) -> str:
    """Return an address of the loopback network that no other test process has."""
    mine = os.getpid() % 15_000
    return f"127.{32 + mine // 250 + 60 * (number // 250)}.{mine % 250}.{number % 250 + 1}"


class FakeEngines:
    """Serve a report at each address; used in a `with` block of one event loop."""

    def __init__(self, count: int) -> None:
        self.addresses = [address_of(number) for number in range(count)]
        self.reports: dict[str, dict[str, Any] | bytes | None] = {one: idle_report() for one in self.addresses}
        """By address: a report, the bytes of an answer, or None to say nothing."""
        self.asked: dict[str, int] = dict.fromkeys(self.addresses, 0)
        self.connections: dict[str, int] = dict.fromkeys(self.addresses, 0)
        self.open: set[asyncio.Transport] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Answering(self), self.addresses, ADMIN_PORT)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for transport in tuple(self.open):
            transport.abort()
        await asyncio.sleep(0.01)  # for the transports to end

    def serve_requests(self, address: str, count: int, *, prompt: int = 1155, answer: int = 211) -> None:
        """Let an engine have served requests, each within a second."""
        report = self.reports[address]
        assert isinstance(report, dict)
        for name, each in (
            ("requests_total", 1),
            ("finished_total", 1),
            ("prompt_tokens_total", prompt),
            ("finished_output_tokens_total", answer),
            ("generation_tokens_total", answer),
        ):
            report[name] += each * count
        counts = list(report["ttft"]["counts"])
        counts[1] += count
        report["ttft"] = {"bounds_s": BOUNDS_S, "counts": counts}

    def answer(self, address: str) -> bytes | None:
        """Return the bytes of an engine's answer."""
        self.asked[address] += 1
        report = self.reports[address]
        return http(json.dumps(report).encode()) if isinstance(report, dict) else report


def http(body: bytes, *, status: str = "200 OK", more: str = "") -> bytes:
    """Return an HTTP answer."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


class _Answering(asyncio.Protocol):
    def __init__(self, engines: FakeEngines) -> None:
        self._engines = engines

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._address = transport.get_extra_info("sockname")[0]
        self._engines.connections[self._address] += 1
        self._engines.open.add(transport)

    def connection_lost(self, _: Exception | None) -> None:
        self._engines.open.discard(self._transport)

    def data_received(self, _: bytes) -> None:
        answer = self._engines.answer(self._address)
        if answer is not None:
            self._transport.write(answer)
            if b"Connection: close" in answer:
                self._transport.close()
