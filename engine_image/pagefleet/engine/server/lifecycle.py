"""The API process from start to end: bind, start the core, serve, drain, and leave with the right exit code.

loading --core ready and tokenizer loaded--> serving --SIGTERM, SIGINT--> draining --nothing in flight--> exit 0
   |                                            |                            |--second signal, timeout--> abort all
   |--core cannot start--> exit 2               |--core dies--> exit 1       |--core dies--> exit 1
   |--SIGTERM, SIGINT--> exit 0
"""

import asyncio
import concurrent.futures
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from pagefleet.engine.allocator import keep_heap_small
from pagefleet.engine.config import EngineConfig, ServerConfig
from pagefleet.engine.core_client import CoreClient
from pagefleet.engine.errors import EngineDead, EngineError, StartupError
from pagefleet.engine.gguf_cache import cached_conversion, is_convertible
from pagefleet.engine.messages import CoreReady, StartupProgress
from pagefleet.engine.metrics import EngineMetrics
from pagefleet.engine.model_source import ModelSource, resolve_model
from pagefleet.engine.server.admin import create_admin_app
from pagefleet.engine.server.http import HttpServer, bind
from pagefleet.engine.server.public import create_public_app
from pagefleet.engine.server.serving import Serving, unix_time
from pagefleet.engine.server.state import PodSettings, ServerState
from pagefleet.engine.tokenizer import Tokenizer, load_tokenizer

EXIT_STOPPED = 0
EXIT_CORE_DIED = 1
EXIT_CANNOT_START = 2

ABORT_GRACE_S = 1.0
"""Time that aborted or failed requests get to send their last bytes."""

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


def run_and_exit(engine: EngineConfig, server: ServerConfig) -> NoReturn:
    """Run the engine's API process and leave with its exit code, even while the tokenizer is still being loaded."""
    code = asyncio.run(serve(engine, server))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the interpreter's own end could abort the process over a thread that is in an extension's code


async def serve(engine: EngineConfig, server: ServerConfig) -> int:
    """Run the engine's API process and return its exit code.

    0: asked to stop, and drained. 1: the core died. 2: it could not start; the reason is one sentence on stderr.
    """
    keep_heap_small()
    try:
        return await _Lifecycle(engine, server).run()
    except StartupError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_CANNOT_START
    except EngineDead as error:  # killed while loading, most often for its memory
        sys.stderr.write(f"{error}\n")
        return EXIT_CORE_DIED


class _Lifecycle:
    def __init__(self, engine: EngineConfig, server: ServerConfig) -> None:
        self._engine = engine
        self._server = server
        self._began_s = time.monotonic()
        self._metrics = EngineMetrics(model_name=server.served_model_name or engine.model)
        self._client = CoreClient(engine, on_step=self._metrics.observe_step, on_startup=self._log_stage)
        self._state = ServerState(
            engine=engine,
            server=server,
            pod=PodSettings.from_environment(),
            client=self._client,
            metrics=self._metrics,
        )
        self._stop_signals = 0
        self._signalled = asyncio.Event()

    async def run(self) -> int:
        public_socket = bind(self._server.host, self._server.port, flag="--port")
        try:
            admin_socket = bind(self._server.host, self._server.admin_port, flag="--admin-port")
        except StartupError:
            public_socket.close()
            raise
        servers = [
            HttpServer(create_public_app(self._state), public_socket),
            HttpServer(create_admin_app(self._state), admin_socket),
        ]
        self._state.release_connections = servers[0].release_connections
        logger.info("public API on %s, admin on %s", servers[0].url, servers[1].url)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            await self._client.start()
            for http_server in servers:
                http_server.start()
            return await self._run_until_end()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            await self._client.close()
            await asyncio.gather(*(http_server.stop() for http_server in servers))

    async def _run_until_end(self) -> int:
        dead = asyncio.ensure_future(self._client.wait_dead())
        stopping = asyncio.ensure_future(self._wait_signals(1))
        loading = asyncio.ensure_future(self._load())
        try:
            await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():
                logger.info("stopped while loading")
                return EXIT_STOPPED
            self._state.serving = loading.result()
            logger.info(
                "ready after %.1f s: %s", time.monotonic() - self._began_s, self._describe(self._state.serving.ready)
            )
            await asyncio.wait({dead, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not dead.done():
                await self._drain(dead)
            if dead.done():
                logger.error("%s", dead.result())
                await self._wait_idle(ABORT_GRACE_S)
                return EXIT_CORE_DIED
            return EXIT_STOPPED
        finally:
            for task in (dead, stopping, loading):
                task.cancel()
            await asyncio.gather(dead, stopping, loading, return_exceptions=True)

    # ---- loading ----

    async def _load(self) -> Serving:
        """Wait for the core and load the tokenizer meanwhile; raises StartupError or EngineDead."""
        tasks = (
            asyncio.ensure_future(self._client.wait_ready()),
            asyncio.ensure_future(self._load_tokenizer()),
        )
        try:
            ready, tokenizer = await asyncio.gather(*tasks)  # whichever fails first says why
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._metrics.set_ready(ready)
        logged = self._metrics.startup_stage_seconds
        for stage in ready.stage_seconds.keys() - logged.keys():
            logger.info("stage %s took %.1f s", stage, ready.stage_seconds[stage])
        logged.update(ready.stage_seconds)  # the core's own clock, without our share of the waiting
        return Serving(
            client=self._client,
            ready=ready,
            tokenizer=tokenizer,
            metrics=self._metrics,
            model_name=self._state.model_name,
            created=unix_time(),
            seeds=random.Random(self._engine.seed),  # noqa: S311 - reproducible draws, no secrets
            trusts_chat_templates=self._server.trust_request_chat_template,
            preparing=self._state.preparing,
        )

    async def _load_tokenizer(self) -> Tokenizer:
        await self._client.wait_past("import", "download")
        source = await _in_daemon_thread(lambda: _find_model(self._engine))
        if is_convertible(source):
            # The core converts it once, tokenizer included; reading the original here would take many seconds.
            await self._client.wait_past("import", "download", "load")
        began_s = time.monotonic()
        tokenizer = await _in_daemon_thread(lambda: _load_tokenizer(source))
        self._metrics.startup_stage_seconds["tokenizer"] = time.monotonic() - began_s
        logger.info("stage tokenizer took %.1f s", time.monotonic() - began_s)
        return tokenizer

    def _log_stage(self, progress: StartupProgress) -> None:
        ended = self._state.enter_stage(progress)
        if ended is not None:
            logger.info("stage %s took %.1f s", *ended)

    def _describe(self, ready: CoreReady) -> str:
        linears = ready.linear_backend + ("" if ready.quantization == "none" else f" in {ready.quantization}")
        return (
            f"{self._state.model_name} ({ready.architecture}, {ready.model_impl} code, "
            f"{ready.dtype} on {ready.device}, attention {ready.attention_backend}, linears {linears}), "
            f"{ready.blocks_total} blocks of {ready.block_size} tokens, context {ready.max_model_len}"
        )

    # ---- stopping ----

    def _on_signal(self, number: signal.Signals) -> None:
        self._stop_signals += 1
        self._state.is_stopping = True
        self._state.drain()
        self._signalled.set()
        logger.info("%s received: %s", number.name, "draining" if self._stop_signals == 1 else "aborting at once")

    async def _wait_signals(self, count: int) -> None:
        while self._stop_signals < count:
            self._signalled.clear()
            await self._signalled.wait()

    async def _drain(self, dead: asyncio.Future[EngineError]) -> None:
        """Let running requests finish; abort them at the timeout or the second signal. A dead core ends all itself."""
        began_s = time.monotonic()
        idle = asyncio.ensure_future(self._wait_idle(self._server.drain_timeout_s))
        hurried = asyncio.ensure_future(self._wait_signals(2))
        try:
            waiting: set[asyncio.Future[Any]] = {idle, hurried, dead}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (idle, hurried):
                task.cancel()
            await asyncio.gather(idle, hurried, return_exceptions=True)
        if self._state.requests_in_flight and not dead.done():
            logger.warning("aborting %d requests", self._state.requests_in_flight)
            self._client.abort_all()
            await self._wait_idle(ABORT_GRACE_S)
        logger.info("drained in %.1f s", time.monotonic() - began_s)

    async def _wait_idle(self, timeout_s: float) -> None:
        """Wait until no request is in flight, or for the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._state.requests_in_flight:
                    self._state.request_ended.clear()
                    await self._state.request_ended.wait()
        except TimeoutError:
            pass


def _in_daemon_thread(work: Callable[[], Result]) -> asyncio.Future[Result]:
    """Run work in a thread of its own that the end of the process does not wait for, as it does for an executor's."""
    future: concurrent.futures.Future[Result] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # so that a result after a cancellation is dropped

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # handed to whoever waits
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return asyncio.wrap_future(future)


def _find_model(engine: EngineConfig) -> ModelSource:
    # The core has downloaded the model by now, so this only finds it.
    return resolve_model(engine.model, lambda _share: None, revision=engine.revision)


def _load_tokenizer(source: ModelSource) -> Tokenizer:
    source = cached_conversion(source) or source
    return load_tokenizer(source.folder, source.gguf_file, keep_torch_out=True)
