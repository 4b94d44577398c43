"""An engine without a model: the command line, admin port, drain and exit codes of the real one.

MODEL is a JSON file that says how it behaves; see Behaviour. It is read once, at the start, like a real model.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

NOT_COUNTED = (
    "tokens_queued",
    "queue_age_s",
    "prefix_hit_tokens_total",
    "finished_output_tokens_total",
    "preemptions_total",
    "steps_total",
    "step_seconds_total",
    "computed_tokens_total",
    "kv_tokens_read_total",
    "sequence_steps_total",
)
"""What a fake leaves at 0: it makes no steps."""


class Engine:
    def __init__(self, arguments: list[str]) -> None:
        self.model_file = Path(arguments[2])
        flags = dict(zip(arguments[3::2], arguments[4::2], strict=True))
        self.port, self.admin_port = int(flags["--port"]), int(flags["--admin-port"])
        self.name = flags["--served-model-name"]
        self.behaviour: dict[str, Any] = json.loads(self.model_file.read_text())
        self.started = time.monotonic()
        self.generated = 0
        self.arrived = 0
        self.finished = 0
        self.in_flight = 0
        self.drains = False
        self.ends = False

    @property
    def phase(self) -> str:
        if self.drains:
            return "Draining"
        if self.behaviour.get("never_ready"):
            return "Loading"
        return "Ready" if time.monotonic() - self.started >= self.behaviour.get("load_s", 0.0) else "Downloading"

    async def capacity(self, _request: Request) -> Response:
        detail = "Downloading 63 %" if self.phase == "Downloading" else None
        places = self.behaviour.get("places", 10)
        counters = dict.fromkeys(NOT_COUNTED, 0)
        return JSONResponse(
            {
                **counters,
                "phase": self.phase,
                "detail": detail,
                "draining": self.drains,
                "startup_stage_seconds": {"load": self.behaviour.get("told_start_s", 6.0)},
                "blocks_total": places,
                "blocks_active": min(places, self.in_flight),
                "blocks_cached": self.finished,
                "block_size": 16,
                "queue_depth": max(0, self.in_flight - places),
                "running": min(places, self.in_flight),
                "in_flight": self.in_flight,
                "requests_total": self.arrived,
                "finished_total": self.finished,
                "prompt_tokens_total": self.arrived,
                "generation_tokens_total": self.generated,
            }
        )

    async def live(self, _request: Request) -> Response:
        hangs = time.monotonic() - self.started >= self.behaviour.get("hangs_after_s", float("inf"))
        return Response(status_code=503 if hangs else 200)

    async def chat(self, request: Request) -> Response:
        if self.drains:
            return JSONResponse({"error": {"message": "draining"}}, 503)
        body = await request.json()
        if self.behaviour.get("crash_on_request"):
            os._exit(1)
        if not body.get("stream"):
            return JSONResponse(
                {"served_by": os.getpid(), "model": body["model"], "version": self.behaviour.get("version")}
            )
        self.arrived += 1
        self.in_flight += 1
        return StreamingResponse(self.tokens(), media_type="text/event-stream")

    def on_request_end(self) -> None:
        self.finished += 1
        if self.ends and not self.in_flight:
            self.may_end.set()

    async def drain(self, request: Request) -> Response:
        self.drains = request.url.path == "/drain" or self.ends
        return JSONResponse({"draining": self.drains})

    async def tokens(self) -> Any:
        try:
            for number in range(self.behaviour.get("tokens", 3)):
                await asyncio.sleep(self.behaviour.get("token_s", 0.01))
                self.generated += 1
                yield f"data: {json.dumps({'choices': [{'delta': {'content': f'word{number} '}}]})}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            self.in_flight -= 1
            self.on_request_end()

    async def serve(self) -> None:
        routes = [Route("/v1/chat/completions", self.chat, methods=["POST"])]
        admin_routes = [
            Route("/capacity", self.capacity),
            Route("/livez", self.live),
            *(Route(path, self.drain, methods=["POST"]) for path in ("/drain", "/undrain")),
        ]
        servers = [
            Server(Starlette(routes=routes), self.port),
            Server(Starlette(routes=admin_routes), self.admin_port),
        ]
        self.may_end = asyncio.Event()

        def end() -> None:
            self.drains = self.ends = True
            if not self.in_flight:
                self.may_end.set()

        if not self.behaviour.get("ignores_sigterm"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
        else:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        tasks = [asyncio.create_task(server.serve()) for server in servers]
        if (crash_after_s := self.behaviour.get("crash_after_s")) is not None:
            await asyncio.sleep(crash_after_s)
            sys.stderr.write("the fake core crashed\n")
            sys.stderr.flush()
            os._exit(1)
        await self.may_end.wait()
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*tasks)


class Server(uvicorn.Server):
    def __init__(self, application: Starlette, port: int) -> None:
        super().__init__(uvicorn.Config(application, port=port, log_config=None, log_level="critical", lifespan="off"))

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


def main() -> None:
    engine = Engine(sys.argv[1:])
    with (engine.model_file.parent / "pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    with (engine.model_file.parent / "arguments").open("a") as log:
        log.write(json.dumps(sys.argv[1:]) + "\n")
    if sentence := engine.behaviour.get("refuses"):
        sys.stderr.write(f"{sentence}\n")
        sys.exit(2)
    asyncio.run(engine.serve())


if __name__ == "__main__":
    main()
