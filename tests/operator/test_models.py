"""`pagefleet.operator.models`: a hub is asked beside the work, once for a model, and its silence is told."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pagefleet.api.v1alpha1 import ModelSource
from pagefleet.operator import models
from pagefleet.operator.hub import Hub as HubAddress
from pagefleet.operator.models import ModelWatch
from pagefleet.operator.plan.observed import ModelKnowledge
from pagefleet.operator.store import ServiceKey
from tests.support import checkpoints
from tests.support.hub import Hub

KEY = ServiceKey("team", "chat")
TINY = ModelSource(uri="hf://organisation/tiny")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in two files, the header of the first longer than the first range that is asked for."""
    config, (header,) = checkpoints.dense(
        layers=40, hidden=64, intermediate=128, heads=4, kv_heads=2, vocabulary=256, head_dim=16, context=2048
    )
    names = sorted(set(header) - {"__metadata__"})
    parts = []
    for part in (names[::2], names[1::2]):
        end, entries = 0, {}
        for name in part:
            begin, stop = header[name]["data_offsets"]
            entries[name] = {**header[name], "data_offsets": [end, end + stop - begin]}
            end += stop - begin
        parts.append(entries)
    parts[0]["__metadata__"] = {"padding": "x" * 200_000}
    return checkpoints.write_model(tmp_path_factory.mktemp("hub") / "tiny", (config, parts))


@pytest.fixture
def hub(repository: Path) -> Iterator[Hub]:
    with Hub(repository) as running:
        yield running


@asynccontextmanager
async def watching(
    endpoint: str, changed: list[ServiceKey] | None = None, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[ModelWatch]:
    heard: list[ServiceKey] = [] if changed is None else changed
    watch = ModelWatch(HubAddress(endpoint), clock=clock, on_change=heard.append)
    running = asyncio.ensure_future(watch.run())
    try:
        yield watch
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def answer(watch: ModelWatch, source: ModelSource = TINY, key: ServiceKey = KEY) -> ModelKnowledge:
    async with asyncio.timeout(60):
        while (known := watch.knowledge_of(key, source)).pending_s:  # noqa: ASYNC110 - what it waits for is an answer
            await asyncio.sleep(0.02)
    return known


async def test_a_model_is_looked_up_once_for_all_its_services(hub: Hub, repository: Path) -> None:
    changed: list[ServiceKey] = []
    other = ServiceKey("team", "other")
    async with watching(hub.url, changed) as watch:
        first = watch.knowledge_of(KEY, TINY)
        assert first.facts is None
        assert 0 < first.pending_s <= models.PATIENCE_S
        assert watch.knowledge_of(other, TINY).pending_s > 0
        known = await answer(watch)
        assert known.facts is not None
        assert sorted(changed) == [KEY, other]
        asked = len(hub.paths)
        assert watch.knowledge_of(KEY, TINY) == known
        assert len(hub.paths) == asked == 6, "revision, index, config, two headers, the rest of the longer one"
    weights = sum(path.stat().st_size for path in repository.glob("*.safetensors"))  # noqa: ASYNC240 - once
    assert known.facts.architecture.layers == 40
    assert 0.9 * weights < known.facts.weights.stored_bytes < weights


async def test_a_hub_that_is_away_is_told_tried_again_and_waited_for_once(hub: Hub) -> None:
    now_s = 0.0
    async with watching("http://127.0.0.1:9", clock=lambda: now_s) as watch:
        known = await answer(watch)
        assert known.facts is None
        assert "http://127.0.0.1:9 can't be reached" in known.obstacle
        assert known.retry_s == models.RETRY_S
        assert watch.knowledge_of(KEY, ModelSource(uri="hf://organisation/other")).pending_s == 0
    async with watching(hub.url, clock=lambda: now_s) as watch:
        unknown = ModelSource(uri="hf://organisation/none")
        known = await answer(watch, unknown)
        assert known.obstacle == "organisation/none can't be read (the hub answers 404)"
        asked = len(hub.paths)
        now_s = models.RETRY_S - 1
        await answer(watch, unknown)
        await asyncio.sleep(0.1)
        assert len(hub.paths) == asked
        now_s = models.RETRY_S
        assert (await answer(watch, unknown)).obstacle == known.obstacle
        async with asyncio.timeout(30):
            while len(hub.paths) == asked:  # noqa: ASYNC110 - what it waits for is a list
                await asyncio.sleep(0.02)


async def test_nobody_waits_longer_than_is_worth_it() -> None:
    now_s = 0.0

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with watching(f"http://127.0.0.1:{port}", clock=lambda: now_s) as watch:
            assert watch.knowledge_of(KEY, TINY).pending_s == models.PATIENCE_S
            now_s = models.PATIENCE_S
            known = watch.knowledge_of(KEY, TINY)
        assert (known.pending_s, known.obstacle) == (0.0, f"http://127.0.0.1:{port} has not answered yet")
        server.close()


def damaged(repository: Path, folder: Path, file: str, content: bytes) -> Path:
    for path in repository.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / file).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("config.json", b"[]", "holds no JSON object"),
        ("config.json", b"[" * 100_000, "can't be read"),
        ("config.json", b"{}", "config.json has no model_type"),
        ("model.safetensors.index.json", b'{"weight_map": 7}', "no weight_map"),
        ("model-0.safetensors", b"\xff" * 64, "longer than the format allows"),
        ("model-0.safetensors", b"\x08" + b"\x00" * 7 + b"not json", "can't be read"),
    ],
)
async def test_damaged_files_are_told_in_one_sentence(
    repository: Path, tmp_path: Path, file: str, content: bytes, sentence: str
) -> None:
    with Hub(damaged(repository, tmp_path, file, content)) as hub:
        async with watching(hub.url) as watch:
            known = await answer(watch)
    assert known.facts is None
    assert sentence in known.obstacle
    assert "\n" not in known.obstacle


@pytest.mark.parametrize("uri", ["pvc://claim/chat", "oci://registry.example/chat:1", "package://module/file"])
async def test_files_that_only_pods_see_are_not_asked_for(uri: str) -> None:
    watch = ModelWatch(HubAddress("http://127.0.0.1:9"), clock=time.monotonic, on_change=lambda _key: None)
    assert watch.knowledge_of(KEY, ModelSource(uri=uri)).obstacle == f"the files of {uri} are seen by its pods alone"


async def test_a_process_without_a_hub_asks_nobody() -> None:
    watch = ModelWatch(None, clock=time.monotonic, on_change=lambda _key: None)
    assert "PAGEFLEET_HUB is off" in watch.knowledge_of(KEY, TINY).obstacle
    await watch.run()


async def test_only_so_many_models_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MOST_MODELS", 3)
    watch = ModelWatch(HubAddress("http://127.0.0.1:9"), clock=time.monotonic, on_change=lambda _key: None)
    for number in (1, 2, 3, 1, 4):
        watch.knowledge_of(KEY, ModelSource(uri=f"hf://organisation/model-{number}"))
    assert [name for name, _ in watch._models] == [f"organisation/model-{number}" for number in (3, 1, 4)]
