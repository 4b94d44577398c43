"""A router's picture of the prefix cache, built from nothing but what the core publishes."""

import asyncio
import random
import socket
from pathlib import Path

import pytest
import zmq

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.core_client import CoreClient
from pagefleet.engine.errors import StartupError
from pagefleet.engine.kv_events import TOPIC, KvEventPublisher, decode_batch
from pagefleet.engine.prefix_cache import (
    AllCleared,
    BlockRemoved,
    BlockStored,
    PrefixCache,
    block_hash,
    root_hash,
)
from pagefleet.engine.sampling_params import SamplingParameters
from tests.support.tiny_models import make_tiny_llama

BLOCK = 8
BLOCKS = 12
BLOCK_BYTES = 2 * 2 * 2 * 8 * 4 * BLOCK
"""Of the tiny model: keys and values of 2 layers, 2 heads of 8 numbers, 4 bytes each."""


class Router:
    """Follow one engine as a router would."""

    def __init__(self, endpoint: str, *, connects: bool = True) -> None:
        self.stored: dict[bytes, BlockStored] = {}
        self.removals = 0
        self._sequence: int | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, TOPIC)
        self._endpoint = endpoint
        if connects:
            self.connect()

    def connect(self) -> None:
        self._socket.connect(self._endpoint)

    def read(self, timeout_ms: int) -> bool:
        """Take one batch; False when none comes in time."""
        if not self._socket.poll(timeout_ms):
            return False
        topic, data = self._socket.recv_multipart()
        batch = decode_batch(data)
        assert topic == TOPIC
        assert self._sequence is None or batch.sequence == self._sequence + 1, "nothing is missed"
        self._sequence = batch.sequence
        for event in batch.events:
            match event:
                case AllCleared():
                    self.stored.clear()
                case BlockStored():
                    assert event.block_hash == block_hash(event.parent_hash, event.token_ids)
                    assert len(event.token_ids) == event.block_size
                    self.stored[event.block_hash] = event
                case BlockRemoved():
                    self.removals += 1
                    del self.stored[event.block_hash]
        return True

    def close(self) -> None:
        self._context.destroy(linger=0)


def free_endpoint() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def prefix_hits(router: Router, tokens: list[int]) -> int:
    """Return how many tokens of a prompt the router expects to be found."""
    parent = root_hash(None)
    for end in range(BLOCK, len(tokens), BLOCK):  # the last token is never found
        parent = block_hash(parent, tokens[end - BLOCK : end])
        if parent not in router.stored:
            return end - BLOCK
    return (len(tokens) - 1) // BLOCK * BLOCK


async def settle(router: Router) -> None:
    while await asyncio.to_thread(router.read, 150):
        pass


async def serve_prompts(client: CoreClient, router: Router, prompts: list[list[int]]) -> int:
    """Send prompts one after another, each with the hits that the router foresees; returns the tokens hit."""
    hits = 0
    for number, prompt in enumerate(prompts):
        expected = prefix_hits(router, prompt)
        (stream,) = await client.submit(str(number), prompt, SamplingParameters(max_tokens=5, temperature=0.0))
        outputs = [output async for output in stream]
        assert outputs[0].cached_tokens == expected
        hits += expected
        await settle(router)
        assert client.state is not None
        assert len(router.stored) == client.state.blocks_cached
    return hits


async def watch_core(folder: Path) -> None:
    endpoint = free_endpoint()
    generator = random.Random(1)
    shared = [generator.randrange(512) for _ in range(6 * BLOCK)]
    prompts = [shared[: generator.randrange(1, 48)] + [generator.randrange(512)] * 9 for _ in range(12)]
    client = CoreClient(
        EngineConfig(
            model=str(folder),
            dtype="float32",
            device="cpu",
            threads=1,
            block_size=BLOCK,
            kv_cache_memory_bytes=BLOCKS * BLOCK_BYTES,
            kv_events_endpoint=endpoint,
        )
    )
    early, late = Router(endpoint), Router(endpoint, connects=False)
    try:
        await client.start()
        await client.wait_ready()
        await asyncio.to_thread(early.read, 10_000)  # the empty cache, told to a new subscriber
        assert await serve_prompts(client, early, prompts) > 5 * BLOCK
        assert early.removals > 0, "the cache is small enough to evict"
        late.connect()
        await asyncio.to_thread(late.read, 10_000)
        assert late.stored == early.stored != {}
    finally:
        await client.close()
        early.close()
        late.close()


def test_a_router_foresees_every_hit_of_a_real_core(tmp_path: Path) -> None:
    asyncio.run(watch_core(make_tiny_llama(tmp_path)))


def test_a_subscriber_that_missed_batches_subscribes_again(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    endpoint = f"ipc://{tmp_path}/events"
    publisher, cache = KvEventPublisher(context, endpoint), PrefixCache(keeps_events=True)
    parent = root_hash(None)
    for block in range(3):
        cache.store(block, block_hash(parent, [block] * BLOCK), parent, [block] * BLOCK, 0.0)
        publisher.publish(cache.take_events(), cache.snapshot)
    cache.remove(1, 1.0)
    publisher.publish(cache.take_events(), cache.snapshot)
    router = Router(endpoint)
    try:
        while not router.read(20):
            publisher.publish(cache.take_events(), cache.snapshot)
        assert {hash_: event.token_ids[0] for hash_, event in router.stored.items()} == {
            block_hash(parent, [block] * BLOCK): block for block in (0, 2)
        }
        cache.clear()
        publisher.publish(cache.take_events(), cache.snapshot)
        assert router.read(1000)
        assert router.stored == {}
    finally:
        router.close()
        context.destroy(linger=0)


def test_an_address_that_is_taken_is_said() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    endpoint = free_endpoint()
    holder = KvEventPublisher(context, endpoint)
    with pytest.raises(StartupError, match=r"--kv-events-endpoint tcp://.* cannot be bound .* tcp://\*:5557"):
        KvEventPublisher(context, endpoint)
    holder.publish([AllCleared()], list)  # the one that has the address goes on
    context.destroy(linger=0)
