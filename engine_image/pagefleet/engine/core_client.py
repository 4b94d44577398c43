"""The API process's end of the sockets: start the core, submit requests, notice its death.

The core is a child process with two ZeroMQ sockets in a private folder. When it ends, whatever the reason, every open
stream gets `EngineDead` and every later submit raises it, so nothing waits for an answer that cannot come.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable

import msgspec
import zmq
import zmq.asyncio

from pagefleet.engine import messages
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.errors import EngineDead, EngineError, QueueFull, RequestRefused, StartupError
from pagefleet.engine.sampling_params import SamplingParameters

logger = logging.getLogger(__name__)

SHUTDOWN_GRACE_S = 5.0
"""Time that the core gets to end by itself before it is killed."""


class Unseen(msgspec.Struct, kw_only=True):
    """What of a request counts as queued until a state of the core includes it."""

    arrival_s: float
    prompt_tokens: int
    is_accepted: bool = False


class RequestStream:
    """Yield the outputs of one choice of a request, in order; leaving early needs `abort()`."""

    def __init__(self, client: "CoreClient", request_id: str, index: int = 0) -> None:
        self.request_id = request_id
        self.index = index
        self._client = client
        self._events: asyncio.Queue[messages.RequestOutput | EngineError | None] = asyncio.Queue()
        self._is_finished = False

    def put(self, event: messages.RequestOutput | EngineError | None) -> None:
        """Hand over the next output; None says accepted, an error ends the stream."""
        self._events.put_nowait(event)

    async def wait_accepted(self) -> None:
        """Wait until the core has taken the request; raises QueueFull, RequestRefused or EngineDead."""
        event = await self._events.get()
        if isinstance(event, EngineError):
            self._is_finished = True
            raise event
        if event is not None:
            self._events.put_nowait(event)  # ended by `abort_all` before the core answered

    async def __aiter__(self) -> AsyncIterator[messages.RequestOutput]:
        """Yield outputs until the one with a finish reason; raises EngineDead when the core ends."""
        while not self._is_finished:
            event = await self._events.get()
            if isinstance(event, EngineError):
                self._is_finished = True
                raise event
            if event is not None:
                self._is_finished = event.finish_reason is not None
                yield event

    def abort(self) -> None:
        """End the choice before the core's next step; does nothing once it has finished."""
        if not self._is_finished:
            self._is_finished = True
            self._client.abort(self.request_id, self.index)


class CoreClient:
    """Own the core process."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        on_step: Callable[[messages.StepOutputs], None] | None = None,
        on_startup: Callable[[messages.StartupProgress], None] | None = None,
    ) -> None:
        self.ready: messages.CoreReady | None = None
        """What the engine can hold; None until it is up."""
        self.startup: messages.StartupProgress | None = None
        """The latest start-up stage."""
        self.state: messages.CoreState | None = None
        """The state after the core's latest step."""
        self.failure: EngineError | None = None
        """Why nothing can be answered any more."""
        self.unseen: dict[str, Unseen] = {}
        """Requests submitted that the latest state doesn't include yet; a core in a long step looks at none."""
        self.choices_submitting = 0
        """Choices of the requests whose `submit` has not returned."""
        self._config = config
        self._on_step = on_step
        self._on_startup = on_startup
        self._last_progress_s = time.monotonic()  # latest step, or when work came to an idle core
        self._streams: dict[str, dict[int, RequestStream]] = {}  # by request, then by choice
        self._changed = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._folder = ""
        self._context: zmq.asyncio.Context | None = None
        self._to_core: zmq.asyncio.Socket | None = None
        self._from_core: zmq.asyncio.Socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closing = False

    @property
    def in_flight(self) -> int:
        """Count the requests submitted and not yet finished."""
        return len(self._streams)

    @property
    def process_id(self) -> int | None:
        """Return the core's process id while it lives."""
        if self._process is None or self._process.returncode is not None:
            return None
        return self._process.pid

    def silent_s(self) -> float:
        """Return the seconds without a step while work is pending; 0 when there is none.

        A core that only answers that it takes requests, but makes no steps, is silent.
        """
        return time.monotonic() - self._last_progress_s if self._streams else 0.0

    async def start(self) -> None:
        """Start the core process; progress arrives in `startup`, the outcome through `wait_ready`."""
        self._folder = tempfile.mkdtemp(prefix="pagefleet-")
        self._context = zmq.asyncio.Context()
        self._to_core = self._context.socket(zmq.PUSH)
        self._from_core = self._context.socket(zmq.PULL)
        for socket, name in ((self._to_core, "in"), (self._from_core, "out")):
            socket.set_hwm(0)  # requests and tokens are never dropped; the bounded queue limits them
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(f"ipc://{self._folder}/{name}")
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pagefleet.engine.core_process",
            self._folder,
            stdin=asyncio.subprocess.PIPE,
            env=os.environ,
            start_new_session=True,  # a Ctrl-C in the terminal drains the server instead of killing the core under it
        )
        if self._process.stdin is not None:
            self._process.stdin.write(msgspec.json.encode(self._config))
            self._process.stdin.close()
        self._tasks = [
            asyncio.create_task(self._read(self._from_core)),
            asyncio.create_task(self._watch(self._process)),
        ]

    async def wait_ready(self) -> messages.CoreReady:
        """Wait for the first real forward pass; raises StartupError or EngineDead."""
        while self.ready is None:
            if self.failure is not None:
                raise self.failure
            self._changed.clear()
            await self._changed.wait()
        return self.ready

    async def wait_past(self, *stages: str) -> None:
        """Wait until the core's start is past these stages; raises StartupError or EngineDead."""
        while self.ready is None and (self.startup is None or self.startup.stage in stages):
            if self.failure is not None:
                raise self.failure
            self._changed.clear()
            await self._changed.wait()

    async def wait_dead(self) -> EngineError:
        """Wait until the core has ended and return why."""
        while self.failure is None:
            self._changed.clear()
            await self._changed.wait()
        return self.failure

    async def submit(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        sampling: SamplingParameters,
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        arrival_s: float | None = None,
    ) -> list[RequestStream]:
        """Submit one request, wait until the core takes it, and return the stream of each choice.

        `arrival_s` is on the monotonic clock; None for now. Raises QueueFull, RequestRefused or EngineDead. Cancelling
        the call aborts the request.
        """
        if self.failure is not None:
            raise EngineDead(str(self.failure))
        now_s = time.monotonic()
        if not self._streams:
            self._last_progress_s = now_s
        arrival_s = now_s if arrival_s is None else arrival_s
        self.unseen[request_id] = Unseen(arrival_s=arrival_s, prompt_tokens=len(prompt_token_ids))
        self.choices_submitting += sampling.choices
        streams = [RequestStream(self, request_id, index) for index in range(sampling.choices)]
        self._streams[request_id] = {stream.index: stream for stream in streams}
        try:
            self._send(
                messages.AddRequest(
                    request_id=request_id,
                    prompt_token_ids=prompt_token_ids,
                    sampling=sampling,
                    cache_salt=cache_salt,
                    priority=priority,
                    arrival_s=arrival_s,
                )
            )
            for stream in streams:
                await stream.wait_accepted()
        except EngineError:
            self._streams.pop(request_id, None)
            self.unseen.pop(request_id, None)
            raise
        except BaseException:
            for stream in streams:
                stream.abort()
            raise
        finally:
            self.choices_submitting -= sampling.choices
        return streams

    def abort(self, request_id: str, index: int) -> None:
        """Abort one choice of a request; its stream gets nothing more."""
        if self._forget(request_id, index) and self.failure is None:
            self._send(messages.AbortChoice(request_id=request_id, index=index))

    def abort_all(self) -> None:
        """Abort every request; each stream ends with the finish reason `abort`."""
        if self._streams and self.failure is None:
            self._send(messages.AbortRequests(request_ids=list(self._streams)))
        for stream in self._open_streams():
            stream.put(
                messages.RequestOutput(
                    request_id=stream.request_id, index=stream.index, new_token_ids=[], finish_reason="abort"
                )
            )
        self._streams.clear()
        self.unseen.clear()

    async def close(self) -> None:
        """End the core process and release sockets and files."""
        self._is_closing = True
        process = self._process
        if process is not None and process.returncode is None:
            if self.ready is None:  # it loads, and reads no messages yet
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            self._send(messages.Shutdown())
            try:
                await asyncio.wait_for(process.wait(), SHUTDOWN_GRACE_S)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _send(self, message: messages.ToCore) -> None:
        if self._to_core is None:
            raise EngineDead("the engine core was not started")
        # With no high-water mark a send never blocks, so the future is already done. It fails only when no core is
        # connected, and then its death or `close` tells every reader.
        sent = self._to_core.send(messages.encode(message), zmq.NOBLOCK)
        asyncio.ensure_future(sent).add_done_callback(lambda future: future.cancelled() or future.exception())

    async def _read(self, socket: zmq.asyncio.Socket) -> None:
        try:
            while True:
                self._take(messages.decode_from_core(await socket.recv()))
        except Exception as error:  # without a reader every request would hang, so this is the core's death
            logger.exception("the engine core's message could not be taken")
            self._fail(EngineDead(f"the engine core's message could not be taken: {error}"))

    def _take(self, message: messages.FromCore) -> None:
        match message:
            case messages.StepOutputs():
                self._last_progress_s = time.monotonic()
                self.state = message.state
                self._forget_seen()
                for output in message.outputs:
                    self._deliver(output)
                if self._on_step is not None:
                    self._on_step(message)
            case messages.Accepted():
                if (unseen := self.unseen.get(message.request_id)) is not None:
                    unseen.is_accepted = True
                for stream in self._streams.get(message.request_id, {}).values():
                    stream.put(None)
            case messages.Refused():
                self.unseen.pop(message.request_id, None)
                for stream in self._streams.get(message.request_id, {}).values():
                    stream.put(_refusal(message))
            case messages.StartupProgress():
                self.startup = message
                self._changed.set()
                if self._on_startup is not None:
                    self._on_startup(message)
            case messages.CoreReady():
                self.ready = message
                self._changed.set()
            case messages.StartupFailed():
                self._fail(StartupError(message.message))

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        await asyncio.sleep(0.1)  # the reader may still hold the core's own account of its end
        if not self._is_closing and self.failure is None:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._fail(EngineDead(f"the engine core ended unexpectedly ({how}); the pod restarts"))

    def _deliver(self, output: messages.RequestOutput) -> None:
        stream = self._streams.get(output.request_id, {}).get(output.index)
        if stream is not None:
            stream.put(output)
        if output.finish_reason is not None:
            self._forget(output.request_id, output.index)

    def _forget(self, request_id: str, index: int) -> bool:
        """Drop a choice's stream, and the request with its last; False when it was not there."""
        streams = self._streams.get(request_id, {})
        was_there = streams.pop(index, None) is not None
        if was_there and not streams:
            del self._streams[request_id]
            self.unseen.pop(request_id, None)
        return was_there

    def _forget_seen(self) -> None:
        """Drop what the core has accepted: each of its states includes what it answered before."""
        for request_id in [name for name, unseen in self.unseen.items() if unseen.is_accepted]:
            del self.unseen[request_id]

    def _open_streams(self) -> list[RequestStream]:
        return [stream for streams in self._streams.values() for stream in streams.values()]

    def _fail(self, error: EngineError) -> None:
        if self.failure is None:
            self.failure = error
        for stream in self._open_streams():
            stream.put(EngineDead(str(self.failure)))
        self._streams.clear()
        self.unseen.clear()
        self._changed.set()


def _refusal(message: messages.Refused) -> EngineError:
    if message.retry_after_s is None:
        return RequestRefused(message.message, parameter=message.parameter, code=message.code)
    return QueueFull(message.message, reason=message.reason, retry_after_s=message.retry_after_s)
