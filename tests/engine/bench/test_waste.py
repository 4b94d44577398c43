"""`bench waste` and `bench block-size` on a tiny model, and the pictures."""

import importlib.util
import json
from functools import partial
from pathlib import Path

import pytest

from pagefleet.engine.bench import block_size, waste
from pagefleet.engine.bench.block_size import BlockSizeOptions, run_block_sizes
from pagefleet.engine.bench.plot import WITHOUT_MATPLOTLIB, Bars, Line, Panel, write_plot
from pagefleet.engine.bench.slots import SlotSample, waste_of
from pagefleet.engine.bench.waste import WasteOptions, run_waste
from pagefleet.engine.bench.workload import log_uniform_requests
from pagefleet.engine.config import EngineConfig
from tests.support.tiny_models import make_tiny_llama

REQUESTS = log_uniform_requests(512, 6, prompt_tokens=(4, 40), output_tokens=(2, 16))
engine_config = partial(
    EngineConfig,
    device="cpu",
    dtype="float32",
    threads=1,
    max_num_seqs=4,
    attention_backend="gather",
    linear_backend="torch",
    quantization="none",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (waste, block_size):
        monkeypatch.setattr(module, "workload_of", lambda _, count: REQUESTS[:count])
    return make_tiny_llama(tmp_path / "model")


def test_waste_by_hand() -> None:
    found = waste_of([SlotSample(0.0, 10, 16, 40, 20), SlotSample(1.0, 20, 24, 40, 20)])
    assert (found.paged, found.context, found.oracle) == (1 - 30 / 40, 1 - 30 / 80, 1 - 30 / 40)
    assert waste_of([]).paged == 0.0


def test_slots_of_a_run(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "waste.json"
    options = WasteOptions(engine=engine_config(model=str(folder)), requests=6, json_path=path)
    report = run_waste(options, lambda _: None)
    assert json.loads(path.read_text()) == report
    samples = report["samples"]
    assert isinstance(samples, list)
    assert len(samples) == report["steps"]
    for _, filled, held, oracle, context in samples:
        assert filled <= held <= context
        assert filled <= oracle <= context
        assert held % 16 == 0
        assert held - filled <= 15 * (context // 512), "at most one partial block each"
    assert max(context for *_, context in samples) == 4 * 512, "four sequences of 512 tokens at most"
    shares = report["waste"]
    assert isinstance(shares, dict)
    assert shares["context"] > shares["paged"]


def test_larger_blocks_waste_more(folder: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    options = BlockSizeOptions(
        engine=engine_config(model=str(folder)),
        block_sizes=[64, 4],
        requests=4,
        rounds=1,
        json_path=tmp_path / "sizes.json",
    )
    report = run_block_sizes(options, lines.append)
    small, large = json.loads((tmp_path / "sizes.json").read_text())["block_sizes"]
    assert report["block_sizes"] == [small, large]
    assert (small["block_size"], large["block_size"]) == (4, 64)
    assert small["output_tokens"] == large["output_tokens"] == sum(request.output_tokens for request in REQUESTS[:4])
    assert 0 < small["waste"] < large["waste"] < 1


PANEL = Panel(x_label="x", y_label="y", lines=[Line("a", [0, 1], [1, 2]), Line("b", [0, 1], [1, 1], is_filled=True)])


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: run make install")
    lines: list[str] = []
    bars = Bars(y_label="y", values={"a": 1.0, "b": 3.0}, limit=("most", 4.0))
    assert write_plot(tmp_path / "p.png", [PANEL, bars], title="t", say=lines.append)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert lines == [f"picture: {tmp_path / 'p.png'}"]


def test_without_matplotlib_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    lines: list[str] = []
    assert not write_plot(tmp_path / "p.png", [PANEL], title="t", say=lines.append)
    assert lines == [WITHOUT_MATPLOTLIB]
    assert not (tmp_path / "p.png").exists()
