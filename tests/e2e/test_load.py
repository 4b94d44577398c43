"""Many clients at once: nothing is lost, metrics are what clients saw, little memory is wasted."""

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx
import pytest
from openai import AsyncOpenAI
from prometheus_client.parser import text_string_to_metric_families

from tests.support.engine_server import EngineServer
from tests.support.tiny_models import make_tiny_model

CLIENTS = 64
NEW_TOKENS = 64
VOCABULARY = 512
BLOCK_SIZE = 16
MOST_WASTE = 0.04


@dataclass
class Client:
    """What one client saw."""

    first_chunk_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    completion_tokens: int = 0
    prompt_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """An engine of 32M parameters: steps take so long that the way to a client and back is little of them."""
    folder = tmp_path_factory.mktemp("model")
    model = make_tiny_model(
        folder, max_position_embeddings=1024, hidden=512, layers=12, heads=8, kv_heads=4, head_dim=64
    )
    engine = {"kv_cache_memory_bytes": 3 * 2**29, "block_size": BLOCK_SIZE, "max_model_len": 1024, "max_num_seqs": 64}
    with EngineServer(model, engine=engine) as running:
        yield running.wait_ready()


async def ask(openai: AsyncOpenAI, prompt: list[int]) -> Client:
    """Stream one completion; chunks of the same token arrive together, so gaps are between chunks with a choice."""
    client = Client()
    began_s = last_s = time.monotonic()
    stream = await openai.completions.create(
        model="tiny",
        prompt=prompt,
        max_tokens=NEW_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    async for chunk in stream:
        now_s = time.monotonic()
        if chunk.choices:
            if client.first_chunk_s:
                client.gaps_s.append(now_s - last_s)
            else:
                client.first_chunk_s = now_s - began_s
            last_s = now_s
            if chunk.choices[0].finish_reason:
                client.finish_reasons.append(chunk.choices[0].finish_reason)
        if chunk.usage:
            client.completion_tokens = chunk.usage.completion_tokens
            client.prompt_tokens = chunk.usage.prompt_tokens
    return client


async def sample_waste(server: EngineServer, samples: list[float]) -> None:
    """Watch how many allocated slots are unused while at least half of the clients run."""
    async with httpx.AsyncClient() as http:
        while True:
            report = (await http.get(f"{server.admin_url}/capacity")).json()
            if report["running"] >= CLIENTS // 2:
                slots = report["blocks_active"] * BLOCK_SIZE
                samples.append((slots - report["tokens_active"]) / slots)
            await asyncio.sleep(0.25)


def histogram(text: str, name: str) -> tuple[float, float]:
    """Return count and sum of a histogram."""
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in (f"{name}_count", f"{name}_sum")
    }
    return values[f"{name}_count"], values[f"{name}_sum"]


def counter(text: str, name: str) -> float:
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    )


async def run_load(server: EngineServer, prompts: list[list[int]]) -> tuple[list[Client], list[float]]:
    """Run one client per prompt at once; return what they saw and the samples of the waste."""
    waste: list[float] = []
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=900) as openai:
        sampling = asyncio.create_task(sample_waste(server, waste))
        clients = await asyncio.gather(*(ask(openai, prompt) for prompt in prompts))
        sampling.cancel()
    return clients, waste


def test_64_streams(server: EngineServer, measured: Callable[[str], None]) -> None:
    generator = random.Random(11)
    prompts = [
        [generator.randrange(100, VOCABULARY) for _ in range(generator.randint(256, 512))] for _ in range(CLIENTS)
    ]
    began_s = time.monotonic()
    clients, waste = asyncio.run(run_load(server, prompts))
    took_s = time.monotonic() - began_s
    text = server.http.get(f"{server.url}/metrics").text

    assert [client.finish_reasons for client in clients] == [["length"]] * CLIENTS
    assert [client.prompt_tokens for client in clients] == [len(prompt) for prompt in prompts]
    assert [client.completion_tokens for client in clients] == [NEW_TOKENS] * CLIENTS
    gaps = [gap for client in clients for gap in client.gaps_s]
    assert len(gaps) == CLIENTS * (NEW_TOKENS - 1)
    for prefix in ("pagefleet_", "vllm:"):
        assert histogram(text, f"{prefix}time_to_first_token_seconds")[0] == CLIENTS
        assert histogram(text, f"{prefix}inter_token_latency_seconds")[0] == len(gaps)
        assert counter(text, f"{prefix}prompt_tokens_total") == sum(len(prompt) for prompt in prompts)
        assert counter(text, f"{prefix}generation_tokens_total") == CLIENTS * NEW_TOKENS
        assert counter(text, f"{prefix}request_success_total") == CLIENTS
    # The clients' clocks include the way there and back on a busy machine; the counts above are exact.
    first_sum = sum(client.first_chunk_s for client in clients)
    assert histogram(text, "vllm:time_to_first_token_seconds")[1] == pytest.approx(first_sum, rel=0.1)
    assert histogram(text, "vllm:inter_token_latency_seconds")[1] == pytest.approx(sum(gaps), rel=0.1)

    server.wait_capacity(blocks_active=0, running=0, in_flight=0)
    assert waste, "the load was never steady"
    assert statistics.mean(waste) < MOST_WASTE
    measured(
        f"{CLIENTS} streams, prompts of 256-512 tokens: {took_s:.1f} s, KV waste {statistics.mean(waste):.2%} "
        f"(most {max(waste):.2%}) at block size {BLOCK_SIZE}, mean TTFT {first_sum / CLIENTS:.1f} s, "
        f"mean gap {statistics.mean(gaps):.2f} s"
    )
