"""Tell routers what the prefix cache holds: a ZeroMQ publisher of every block stored, removed or cleared.

Each message has two frames: the topic `pagefleet.kv`, and a msgpack map (`KvEventBatch`). Sequence numbers rise by one,
so a subscriber notices what it missed; another `publisher` means that the engine has restarted with an empty cache.
To every new subscription the whole cache is told once more, after an `AllCleared`: whoever comes late or has missed a
batch subscribes (again) and has the picture. Blocks are named by the hash chain of `prefix_cache.py`.
"""

import secrets
import time
from collections.abc import Callable

import msgspec
import zmq

from pagefleet.engine.errors import StartupError
from pagefleet.engine.prefix_cache import CacheEvent

TOPIC = b"pagefleet.kv"

MOST_BATCHES_HELD = 10_000
"""Batches kept for a subscriber that does not read; what comes beyond is lost to it."""


class KvEventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Carry what happened to the prefix cache in one step, in order; each event names its type in `type`."""

    publisher: str
    """Chosen anew at each start of the engine."""
    sequence: int
    """Counts the batches from 0."""
    timestamp_s: float
    """Seconds since 1970."""
    events: list[CacheEvent]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(KvEventBatch)


def decode_batch(data: bytes) -> KvEventBatch:
    """Decode a message's second frame; raises msgspec.DecodeError or ValidationError."""
    return _decoder.decode(data)


class KvEventPublisher:
    """Publish batches; never waits for a subscriber."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str) -> None:
        """Bind `endpoint`, such as tcp://*:5557; raises StartupError when that cannot be."""
        self._name = secrets.token_hex(8)
        self._sequence = 0
        self._socket = context.socket(zmq.XPUB)
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # every subscription is seen, not only a topic's first
        self._socket.set_hwm(MOST_BATCHES_HELD)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._socket.close()
            raise StartupError(
                f"--kv-events-endpoint {endpoint} cannot be bound ({error}): "
                "use a free port of this machine, for example tcp://*:5557"
            ) from None

    def publish(self, events: list[CacheEvent], snapshot: Callable[[], list[CacheEvent]]) -> None:
        """Send these events, and the whole cache after them when someone has subscribed since the last call."""
        if self._has_new_subscriber():
            events = [*events, *snapshot()]
        if not events:
            return
        batch = KvEventBatch(publisher=self._name, sequence=self._sequence, timestamp_s=time.time(), events=events)
        self._sequence += 1
        self._socket.send_multipart([TOPIC, _encoder.encode(batch)])

    def _has_new_subscriber(self) -> bool:
        is_new = False
        while self._socket.poll(0):
            is_new |= self._socket.recv().startswith(b"\x01")
        return is_new
