"""`bench prefix` on a tiny model: what is found, what is counted, and the same at a server."""

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest

from pagefleet.engine.bench.first_token import PrefixPrompts
from pagefleet.engine.bench.prefix import PrefixOptions, run_prefix
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.errors import StartupError
from tests.support.engine_server import EngineServer
from tests.support.tiny_models import make_tiny_llama, make_tiny_model

engine_config = partial(
    EngineConfig, device="cpu", dtype="float32", threads=1, attention_backend="gather", linear_backend="torch"
)


def test_prompts_of_a_pair_share_their_beginning_and_nothing_else() -> None:
    prompts = PrefixPrompts(shared_tokens=20, own_tokens=3, vocabulary_size=500)
    pairs = [prompts.pair(index) for index in range(50)]
    assert pairs == [prompts.pair(index) for index in range(50)]
    for first, second in pairs:
        assert len(first) == len(second) == 23
        assert first[:20] == second[:20]
        assert first[20] != second[20]
        assert all(250 <= token < 500 for token in first + second)
    assert len({tuple(first[:16]) for first, _ in pairs}) == 50


def test_hits_find_the_shared_blocks_and_misses_nothing(tmp_path: Path) -> None:
    lines: list[str] = []
    options = PrefixOptions(
        engine=engine_config(model=str(make_tiny_llama(tmp_path / "model"))),
        shared_tokens=72,
        own_tokens=4,
        pairs=3,
        json_path=tmp_path / "prefix.json",
    )
    report = run_prefix(options, lines.append)
    assert json.loads((tmp_path / "prefix.json").read_text()) == report
    pairs = report["pairs"]
    assert isinstance(pairs, list)
    assert [(pair["miss"]["cached_tokens"], pair["hit"]["cached_tokens"]) for pair in pairs] == [(0, 64)] * 3
    assert all(
        request["wall_seconds"] > 0 and request["cpu_seconds"] > 0 for pair in pairs for request in pair.values()
    )
    middle = sorted(pair["miss"]["wall_seconds"] for pair in pairs)[1]
    assert report["miss_seconds"]["wall"] == middle  # type: ignore[index]
    # 76 tokens: 4 whole blocks, and 1 that is shared until each of the 8 choices writes its second token's key.
    assert report["blocks"] == {"at_first_token": {"of_1": 5, "of_8": 5}, "at_second_token": {"of_1": 5, "of_8": 12}}
    assert "blocks of 8 choices over those of 1: 1.00 at the first token, 2.40 at the second" in lines[-1]


def test_a_shared_part_without_a_whole_block_is_named(tmp_path: Path) -> None:
    engine = engine_config(model=str(make_tiny_llama(tmp_path)))
    with pytest.raises(StartupError, match=r"--shared-tokens 8 were not found again: .*for example"):
        run_prefix(PrefixOptions(engine=engine, shared_tokens=8, own_tokens=2, pairs=1), print)


async def test_over_http_nothing_is_left_of_an_earlier_run(tmp_path: Path) -> None:
    with EngineServer(make_tiny_model(tmp_path)) as server:
        server.wait_ready()
        options = PrefixOptions(
            engine=engine_config(model=""), url=server.url, shared_tokens=64, pairs=2, vocabulary_size=500
        )
        for _ in range(2):
            report = await asyncio.to_thread(run_prefix, options, lambda _: None)
            pairs = report["pairs"]
            assert isinstance(pairs, list)
            assert [(pair["miss"]["cached_tokens"], pair["hit"]["cached_tokens"]) for pair in pairs] == [(0, 64)] * 2
            assert report["hit_over_miss"]["cpu"] is None  # type: ignore[index]
        too_long = PrefixOptions(engine=options.engine, url=server.url, shared_tokens=4096, vocabulary_size=500)
        with pytest.raises(StartupError, match=r"fails on a prompt of 4112 tokens: .*400"):
            await asyncio.to_thread(run_prefix, too_long, lambda _: None)
