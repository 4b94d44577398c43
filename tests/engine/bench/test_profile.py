"""`pagefleet profile` on a tiny model, in this process and at a server, and a plan from what it wrote."""

import asyncio
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pagefleet.capacity.step_fit import StepSample, predict_step_s
from pagefleet.capacity.step_time import StepTime
from pagefleet.cli.main import run
from pagefleet.engine.bench.machine_rates import measure_rates
from pagefleet.engine.bench.profile import ProfileOptions, run_profile
from pagefleet.engine.bench.profile_server import (
    Load,
    ServerFacts,
    ladder,
    sample_of,
    server_facts,
    usual_admin_url,
    with_capacity,
)
from pagefleet.engine.bench.roofline import MachineRates
from pagefleet.engine.bench.server_metrics import Growth, Samples
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.errors import StartupError
from tests.support.engine_server import EngineServer
from tests.support.tiny_models import make_tiny_model

engine_config = partial(EngineConfig, device="cpu", dtype="float32", threads=1)


def tiny_rates(dtype: torch.dtype) -> MachineRates:
    return measure_rates(dtype, gemm_size=64, stream_bytes=2**20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def options(**given: Any) -> ProfileOptions:
    defaults = {"batches": (1, 2, 4), "context": 48, "steps": 4, "prompt_tokens": 32, "output_tokens": 8}
    return ProfileOptions(**{"measure": tiny_rates, **defaults, **given})


def check(report: dict[str, Any], words: list[str]) -> None:
    fit = report["fit"]
    assert report["words"] == words
    assert all(fit[term] >= 0 for term in ("base_s", "prefill_token_s", "kv_token_s", "sequence_s"))
    step = StepTime(**{name: fit[name] for name in ("base_s", "prefill_token_s", "kv_token_s", "sequence_s")})
    for sample, residual in zip(report["samples"], fit["residuals"], strict=True):
        assert predict_step_s(step, StepSample(**sample)) == pytest.approx(sample["step_s"] * (1 + residual))
    assert words[1].startswith("Step: ")
    assert any("in prefill and" in line for line in words)


def test_a_model_is_profiled_and_planned_with(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words: list[str] = []
    path = tmp_path / "profile.json"
    report: Any = run_profile(options(engine=engine_config(model=str(folder)), json_path=path), words.append)
    assert json.loads(path.read_text()) == json.loads(json.dumps(report))
    check(report, words)
    decodes = [sample for sample in report["samples"] if sample["sequences"]]
    assert [sample["sequences"] for sample in decodes] == [1, 2, 4, 1, 2, 4]
    assert report["analysis"]["weights_s"] is not None
    assert run(["plan", str(folder), "--profile", str(path), "--prompt-tokens", "20", "--output-tokens", "8"]) == 0
    assert "(measured)" in capsys.readouterr().out.replace("\n", " ")
    assert run(["plan", str(folder), "--dtype", "bfloat16", "--profile", str(path)]) == 2
    assert "the profile was measured in float32" in capsys.readouterr().err
    (tmp_path / "other.json").write_text("{}")
    assert run(["plan", str(folder), "--profile", str(tmp_path / "other.json")]) == 2
    assert "is no profile: write it with pagefleet profile --json FILE" in capsys.readouterr().err


def test_a_server_is_profiled(folder: Path) -> None:
    words: list[str] = []
    with EngineServer(folder, engine={"kv_cache_dtype": "int8"}) as server:
        server.wait_ready()
        given = options(engine=engine_config(model=""), url=server.url, admin_url=server.admin_url, vocabulary_size=500)
        report: Any = run_profile(given, words.append)
        capacity = server.capacity()
        memory = capacity["memory"]
    assert memory["measured"]["kv_cache_bytes"] == memory["predicted"]["kv_cache_bytes"]
    sums = [sum(memory[kind].values()) for kind in ("measured", "predicted")]
    assert memory["drift_ratio"] == pytest.approx(sums[0] / sums[1] - 1)
    assert abs(memory["drift_ratio"]) < 0.05
    check(report, words)
    assert report["target"].startswith("http://")
    assert (report["device"], report["memory_bytes"]) == ("cpu", capacity["memory_bytes"])
    assert re.match(r"The engine's accelerator has [\d.]+ GiB, \d+ MiB of it in use, .* than predicted\.", words[2])
    assert (report["model"], report["dtype"], report["kv_cache"]) == ("tiny", "float32", "int8")
    assert [sample["sequences"] for sample in report["samples"]][:2] == [0, 0]
    assert max(sample["prefill_tokens"] for sample in report["samples"]) >= 16


def test_a_load_of_a_server_gives_means_over_its_steps() -> None:
    after: Samples = {
        ("pagefleet_step_time_seconds_sum", ()): 1.2,
        ("pagefleet_step_time_seconds_count", ()): 6.0,
        ("pagefleet_generation_tokens_total", ()): 10.0,
        ("pagefleet_prompt_tokens_total", ()): 20.0,
        ("pagefleet_prefix_cache_hits_total", ()): 8.0,
    }
    sample = sample_of(Load(2, 10, 5), Growth({}, after), "http://server")
    # each of two sequences decodes 4 times behind 10 tokens: 11 + 12 + 13 + 14 tokens are read
    assert sample == StepSample(prefill_tokens=2.0, kv_tokens=100 / 6, sequences=8 / 6, step_s=1.2 / 6)
    with pytest.raises(StartupError, match="profile a server that has no other requests"):
        sample_of(Load(2, 10, 4), Growth({}, after), "http://server")
    assert ladder((1, 4), 64, 8, 32) == [
        *(Load(1, 16, 1), Load(1, 16, 1), Load(1, 22, 1), Load(1, 22, 1)),
        *(Load(1, 8, 9), Load(4, 8, 9), Load(1, 22, 9), Load(4, 22, 9)),
    ]
    with pytest.raises(StartupError, match="only pagefleet's engine is profiled"):
        server_facts("m", {("vllm:num_requests_running", ()): 0.0})


def test_an_admin_port_that_is_not_reached_or_of_another_engine_is_told_in_one_line(folder: Path) -> None:
    facts = ServerFacts(
        model="tiny",
        dtype="float32",
        kv_cache_dtype="float32",
        quantization="none",
        device="cpu",
        weight_bytes=None,
        kv_bytes_per_token=None,
        kv_tokens=1,
        max_model_len=64,
    )
    unreached = asyncio.run(with_capacity(facts, "http://127.0.0.1:9"))
    assert unreached == replace(facts, capacity_words=unreached.capacity_words)
    assert unreached.capacity_words.startswith(
        "http://127.0.0.1:9/capacity cannot be read, so the accelerator's memory"
    )
    with EngineServer(folder) as server:
        server.wait_ready()
        other = asyncio.run(with_capacity(facts, server.admin_url))
    assert other.memory_bytes is None
    assert "/capacity is of another engine" in other.capacity_words
    assert usual_admin_url("https://chat.example:8443/v1") == "https://chat.example:9000"
    assert usual_admin_url("http://[::1]:8000") == "http://[::1]:9000"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["m", "--admin-url", "http://127.0.0.1:9000"], "--admin-url http://127.0.0.1:9000 is for a server's URL"),
        (["http://127.0.0.1:9", "--admin-url", "9000"], "--admin-url 9000 is for a server's URL: for example http://"),
        (["http://127.0.0.1:9"], "http://127.0.0.1:9 does not answer"),
        (["/no/such/folder"], "model /no/such/folder does not exist"),
        ([""], "URL|MODEL is empty"),
        (["m", "--batches", "4"], "--batches 4 is one batch, which tells no slope: for example --batches 1,4,16."),
        (["m", "--context", "8", "--block-size", "16"], "--context 8 is less than two blocks"),
    ],
)
def test_wrong_input_gets_a_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error
    assert len(error.strip().splitlines()) == 1


def test_too_little_memory_is_a_sentence(folder: Path) -> None:
    engine = engine_config(model=str(folder), kv_cache_memory_bytes=2**10)
    with pytest.raises(StartupError, match="the KV cache has 0 MiB"):
        run_profile(options(engine=engine), lambda _: None)
