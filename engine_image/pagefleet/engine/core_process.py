"""The core's own process: sockets in and out around `EngineCore`, nothing else. HTTP cannot stall a step here.

Started by `CoreClient` as `python -m pagefleet.engine.core_process FOLDER` with its configuration on standard input.
"""

import gc
import logging
import os
import sys

import msgspec
import zmq

from pagefleet.engine import messages
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.core import EngineCore
from pagefleet.engine.errors import StartupError
from pagefleet.engine.kv_events import KvEventPublisher
from pagefleet.engine.stages import StageClock

IDLE_REPORT_MS = 1000
"""An idle core says so this often, so that its state is never older."""

FORMING_PAUSE_MS = 2
"""How often a batch that waits for more requests is looked at; a request that comes ends the pause."""

EXIT_STARTUP_FAILED = 2


class CoreProcess:
    """Serve one API process until it says so or is gone."""

    def __init__(self, folder: str) -> None:
        self._parent = os.getppid()
        context = zmq.Context()
        self._requests = context.socket(zmq.PULL)
        self._replies = context.socket(zmq.PUSH)
        for socket, name in ((self._requests, "in"), (self._replies, "out")):
            socket.set_hwm(0)
            socket.connect(f"ipc://{folder}/{name}")
        self._replies.setsockopt(zmq.LINGER, 1000)
        self._context = context
        self._events: KvEventPublisher | None = None

    def publish_events(self, endpoint: str) -> None:
        """Tell routers what the prefix cache holds, from now on; raises StartupError when the address is not free."""
        self._events = KvEventPublisher(self._context, endpoint)

    def send(self, message: messages.FromCore) -> None:
        """Send one message; never blocks."""
        self._replies.send(messages.encode(message))

    def serve(self, core: EngineCore) -> None:
        """Step while there is work, listen while there is none; returns when told to, or when the parent is gone."""
        while os.getppid() == self._parent:
            if self._events is not None:
                self._events.publish(core.take_cache_events(), core.cache_snapshot)
            if not core.has_work():
                self.send(messages.StepOutputs(outputs=[], state=core.state()))
                self._requests.poll(IDLE_REPORT_MS)
            if not self._take_requests(core):
                return
            if core.has_work():
                self.send(core.step())
                if core.is_forming:
                    self._requests.poll(FORMING_PAUSE_MS)

    def close(self) -> None:
        """Send what is left and release the sockets."""
        self._context.destroy(linger=1000)

    def _take_requests(self, core: EngineCore) -> bool:
        """Handle everything that has arrived; False means shut down."""
        while self._requests.poll(0):
            match messages.decode_to_core(self._requests.recv()):
                case messages.AddRequest() as request:
                    self.send(core.add(request))
                case messages.AbortRequests() as abort:
                    core.abort(abort.request_ids)
                case messages.AbortChoice() as choice:
                    core.abort_choice(choice.request_id, choice.index)
                case messages.Shutdown():
                    return False
        return True


def main() -> int:
    """Run the core; returns the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    os.environ.setdefault("TQDM_DISABLE", "1")  # libraries draw progress bars on import-time defaults; we report stages
    process = CoreProcess(sys.argv[1])
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineConfig)
    clock = StageClock(process.send)
    try:
        if config.kv_events_endpoint is not None:
            process.publish_events(config.kv_events_endpoint)
        with clock.stage("import"):
            # torch: seconds in which the sockets already stand
            from pagefleet.engine.memory_report import log_drift
            from pagefleet.engine.startup import start_engine
        core = start_engine(config, clock)
        if core.info.memory is not None:
            log_drift(core.info.memory)
    except StartupError as error:
        process.send(messages.StartupFailed(message=str(error)))
        process.close()
        return EXIT_STARTUP_FAILED
    # Weights and modules live as long as the process: the collector need not look at them in every pass.
    gc.collect()
    gc.freeze()
    process.send(core.info)
    process.serve(core)
    process.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
