"""`bench throughput` on a tiny model: every engine makes the tokens that were asked for, the report has its keys."""

import json
import math
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from pagefleet.engine.bench import presets, setup
from pagefleet.engine.bench.machine_rates import cpu_name, measure_rates
from pagefleet.engine.bench.our_engine import OurEngine
from pagefleet.engine.bench.output_text import STOP_STRING, OutputText
from pagefleet.engine.bench.presets import PRESETS, Preset, preset_folder
from pagefleet.engine.bench.roofline import MachineRates, ModelSizes, StepRows, kv_tokens_read, roofline
from pagefleet.engine.bench.throughput import ThroughputOptions, run_throughput
from pagefleet.engine.bench.workload import BenchRequest, log_uniform_requests, spread
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.detokenizer import Detokenizer
from pagefleet.engine.errors import StartupError
from pagefleet.engine.messages import RequestOutput
from pagefleet.engine.tokenizer import load_tokenizer
from tests.equality.oracle import reference_tokens
from tests.support.tiny_models import make_tiny_llama

TINY = Preset(
    hidden_size=64, layers=2, query_heads=4, kv_heads=2, intermediate_size=128, vocabulary_size=512, ties_head=True
)
ENGINE = EngineConfig(
    model="",
    device="cpu",
    dtype="float32",
    threads=1,
    max_num_seqs=4,
    attention_backend="gather",
    linear_backend="torch",
    quantization="none",
)


def tiny_rates(dtype: torch.dtype) -> MachineRates:
    return measure_rates(dtype, gemm_size=64, stream_bytes=2**20)


short_requests = partial(log_uniform_requests, prompt_tokens=(4, 40), output_tokens=(2, 16))


@pytest.fixture(autouse=True)
def tiny_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEFLEET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(presets.PRESETS, "S", TINY)
    monkeypatch.setattr(setup, "log_uniform_requests", short_requests)


def test_the_workload_is_always_the_same_and_log_uniform() -> None:
    requests = log_uniform_requests(32_000, 64)
    assert requests == log_uniform_requests(32_000, 64)
    assert sum(len(request.prompt_token_ids) for request in requests) == 8774
    assert sum(request.output_tokens for request in requests) == 5576
    many = log_uniform_requests(1000, 2000)
    below = sum(request.output_tokens < math.sqrt(16 * 256) for request in many)
    assert 0.45 < below / len(many) < 0.55, "half of the lengths lie below the geometric mean of the bounds"
    assert all(300 <= token < 1000 for request in many[:10] for token in request.prompt_token_ids)


def test_a_spread_part_keeps_order_and_takes_no_request_twice() -> None:
    requests = log_uniform_requests(1000, 10)
    part = spread(requests, 4)
    assert [requests.index(request) for request in part] == [0, 2, 5, 7]
    assert spread(requests, 99) == requests


def test_presets_have_the_sizes_that_they_claim(tmp_path: Path) -> None:
    folder = preset_folder("S")
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        embedding = file.get_tensor("model.embed_tokens.weight")
        assert "lm_head.weight" not in list(file.keys()), "a tied head is not stored"
    assert embedding.shape == (512, 64)
    assert abs(float(embedding.float().std()) - 0.02) < 0.002
    written = (folder / "model.safetensors").read_bytes()
    presets.write_random_llama(TINY, tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == written
    assert set(PRESETS) == {"S", "M", "L"}
    tokenizer = load_tokenizer(folder, None)
    assert all(tokenizer.token_texts(range(512)))
    assert tokenizer.token_texts([512]) == [""]


def test_a_preset_of_an_earlier_format_is_made_anew(tmp_path: Path) -> None:
    earlier = tmp_path / "cache" / "bench" / f"S-seed{presets.SEED}"
    earlier.mkdir(parents=True)
    (earlier / "config.json").write_text("{}")
    assert (preset_folder("S") / "tokenizer.json").is_file()


def test_roofline_by_hand() -> None:
    sizes = ModelSizes(body_parameters=100, head_parameters=20, bytes_per_parameter=4, kv_bytes_per_token=8)
    rates = MachineRates(gemm_flop_per_s=1000.0, stream_bytes_per_s=960.0)  # 0.5 s for all weights
    request = BenchRequest([1] * 5, 3)
    assert kv_tokens_read(request) == 5 + 6 + 7
    ideal = roofline(sizes, [StepRows(5, 1), StepRows(1, 1)], [request], rates)
    assert ideal.products_s == pytest.approx((2 * 100 * 6 + 2 * 20 * 2) / 1000)
    assert ideal.exposed_weights_s == pytest.approx(0.5 - 0.24)
    assert ideal.kv_s == pytest.approx(8 * 18 / 960)
    assert ideal.ideal_s == pytest.approx(ideal.products_s + ideal.exposed_weights_s + ideal.kv_s)


def test_against_transformers(tmp_path: Path) -> None:
    lines: list[str] = []
    path, picture = tmp_path / "report.json", tmp_path / "report.png"
    options = ThroughputOptions(
        engine=ENGINE,
        compare="hf",
        requests=6,
        baseline_requests=3,
        rounds=2,
        json_path=path,
        plot_path=picture,
        measure=tiny_rates,
    )
    report = run_throughput(options, lines.append)
    assert json.loads(path.read_text()) == report
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert {"output_tokens_per_second", "roofline_fraction", "cpu"} <= set(report)
    assert set(report["ratios"]) == {"hf_sequential", "hf_static16"}  # type: ignore[call-overload]
    requests = short_requests(512, 6)
    wanted = {
        "pagefleet": requests,
        "hf_sequential": spread(requests, 3),
        "hf_static16": requests,
    }
    contestants = report["contestants"]
    assert isinstance(contestants, dict)
    for name, part in wanted.items():
        assert contestants[name]["output_tokens"] == sum(request.output_tokens for request in part)
        assert contestants[name]["rounds"] == 2
        assert contestants[name]["requests"] == len(part)
    assert report["same_outputs"] == {"hf_sequential": {"same": 3, "of": 3}, "hf_static16": {"same": 6, "of": 6}}
    assert report["cpu"] == cpu_name()
    assert [contestants[name]["text"] for name in wanted] == ["each step, stop string", "at the end", "at the end"]
    assert report["prefix_caching"] is True
    assert 0 < report["text_share_of_cpu_time"] < 1  # type: ignore[operator]
    assert "3 of 6, spread" in "\n".join(lines)
    assert "on: prefix hashing, detokenisation and a stop string" in "\n".join(lines)


def test_policies_at_equal_memory_make_the_same_tokens() -> None:
    lines: list[str] = []
    options = ThroughputOptions(engine=ENGINE, compare="batching", requests=8, rounds=1, measure=tiny_rates)
    report = run_throughput(options, lines.append)
    contestants = report["contestants"]
    assert isinstance(contestants, dict)
    assert list(contestants) == ["continuous", "dynamic", "static"]
    assert len({contestants[name]["output_tokens"] for name in contestants}) == 1
    assert contestants["continuous"]["steps"] < contestants["static"]["steps"], "places are filled again at once"
    assert report["same_outputs"] == {"dynamic": {"same": 8, "of": 8}, "static": {"same": 8, "of": 8}}


def test_weights_of_all_precisions_run_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, tuple[str, ...]]] = []

    class Watched(OurEngine):
        def __init__(self, config: EngineConfig, **options: Any) -> None:
            super().__init__(config, **options)
            started.append((self.core.info.quantization, config.quantization_ignore))

    monkeypatch.setattr("pagefleet.engine.bench.throughput.OurEngine", Watched)
    engine = msgspec.structs.replace(ENGINE, quantization_ignore=())
    options = ThroughputOptions(engine=engine, compare="weights", requests=2, rounds=1, measure=tiny_rates)
    report = run_throughput(options, lambda _: None)
    contestants = report["contestants"]
    assert isinstance(contestants, dict)
    assert list(contestants) == ["none", "int8", "int4"]
    assert started == [("none", ()), ("int8", ()), ("int4", ())]


def test_our_tokens_are_transformers_own() -> None:
    folder = preset_folder("S")
    requests = short_requests(512, 3)
    progress: Counter[str] = Counter()
    run = OurEngine(setup.fitted(ENGINE, folder, requests)).run(requests, lambda tokens: progress.update(tokens=tokens))
    assert run.outputs == [
        reference_tokens(folder, request.prompt_token_ids, request.output_tokens) for request in requests
    ]
    assert progress["tokens"] == run.output_tokens == sum(step.sampled for step in run.steps)
    assert sum(step.tokens for step in run.steps) == sum(request.total_tokens - 1 for request in requests)


def test_texts_are_those_of_all_tokens() -> None:
    folder = preset_folder("S")
    tokenizer, requests = load_tokenizer(folder, None), short_requests(512, 3)
    run = OurEngine(setup.fitted(ENGINE, folder, requests), tokenizer=tokenizer).run(requests, lambda _: None)
    for request, output, text in zip(requests, run.outputs, run.texts, strict=True):
        assert len(output) == request.output_tokens
        detokenizer = Detokenizer(tokenizer, request.prompt_token_ids, skip_special_tokens=True)
        assert text == "".join([*map(detokenizer.append, output), detokenizer.flush()])
    assert any(run.texts)


def test_the_stop_string_is_begun_but_never_complete() -> None:
    tokenizer = load_tokenizer(preset_folder("S"), None)
    written = STOP_STRING[:-1] + " and on"
    tokens = tokenizer.encode("Hi." + written, add_special_tokens=False)
    reader = OutputText(tokenizer, [BenchRequest([400], len(tokens))])
    seen = []
    for index, token in enumerate(tokens):
        reason = "length" if index == len(tokens) - 1 else None
        reader.read([RequestOutput(request_id="0", new_token_ids=[token], finish_reason=reason)])
        seen += reader.texts()
    assert "Hi.\n" not in seen, "a line break may begin the stop string, so it is held back"
    assert seen[-1] == "Hi." + written
    assert reader.cpu_s > 0


def test_a_model_without_tokenizer_needs_no_text(tmp_path: Path) -> None:
    engine = msgspec.structs.replace(ENGINE, model=str(make_tiny_llama(tmp_path / "model")))
    lines: list[str] = []
    options = partial(ThroughputOptions, engine=engine, requests=2, rounds=1, measure=tiny_rates)
    with pytest.raises(StartupError, match=r"no tokenizer could be loaded from .*; --no-text measures tokens alone"):
        run_throughput(options(), lines.append)
    report = run_throughput(options(makes_text=False), lines.append)
    assert report["text"] == "none"
    assert "text_share_of_cpu_time" not in report
    assert "off (--no-text): detokenisation and stop strings" in "\n".join(lines)


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(StartupError, match="--preset X is unknown; use S, M, L"):
        run_throughput(ThroughputOptions(engine=ENGINE, preset="X", measure=tiny_rates), print)


def test_a_json_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    options = ThroughputOptions(
        engine=ENGINE, requests=1, rounds=1, json_path=tmp_path / "none" / "x.json", measure=tiny_rates
    )
    with pytest.raises(StartupError, match=r"x\.json cannot be written: No such file"):
        run_throughput(options, lambda _: None)
