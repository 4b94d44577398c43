"""The `pagefleet` command: wrong input gets a sentence, help is instant, and no traceback is shown."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pagefleet.cli.main import run
from tests.support.tiny_models import make_byte_level_tokenizer, make_tiny_llama

EXAMPLES = Path(__file__).parents[2] / "examples"


def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.run(
        [sys.executable, "-m", "pagefleet.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "PYTHONPATH": path, **variables},
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["engine", "serve"], "Missing argument 'MODEL'"),
        (["engine", "serve", "M", "--frobnicate"], "No such option: --frobnicate"),
        (["engine", "serve", "M", "--block-size", "big"], "Invalid value for '--block-size'"),
        (["engine", "serve", "M", "--block-size", "0"], "--block-size 0 is too small"),
        (["engine", "serve", "M", "--dtype", "fp8"], "'fp8' is not one of 'auto', 'bfloat16', 'float32'"),
        (["engine", "serve", "M", "--kv-cache-memory-bytes", "lots"], "'lots' is not an amount of memory"),
        (["engine", "serve", "M", "--port", "70000"], "--port 70000 is not a port"),
        (["bench", "throughput", "--preset", "XL"], "'XL' is not one of 'S', 'M', 'L'"),
        (["bench", "throughput", "--requests", "0"], "--requests 0 is too small: the smallest is 1"),
        (["bench", "throughput", "--model", "./none"], "model ./none does not exist"),
        (["bench", "waste", "--block-size", "0"], "--block-size 0 is too small"),
        (["bench", "block-size", "16", "0"], "SIZES 0 is too small"),
        (["bench", "prefix", "--pairs", "0"], "--pairs 0 is too small"),
        (["bench", "prefix", "--url", "http://127.0.0.1:9"], "--url http://127.0.0.1:9 does not answer"),
        (["bench", "step", "--batches", "1,many"], "--batches 1,many is not a list of whole numbers"),
        (["bench", "step", "--batches", "8,0"], "--batches 0 is too small"),
        (["bench", "step", "--context", "8"], "--context 8 is too short to be the middle of 32 steps"),
        (["bench", "quality", "--weights", "int3"], "--weights int3 is unknown; use none, int8 or int4"),
        (["bench", "quality", "--ignore", "head"], "--ignore head names no part of a model"),
        (["bench", "quality", "--kv-cache-dtype", ","], "--weights and --kv-cache-dtype name no choice"),
        (["bench", "quality", "--text", "none.txt"], "--text none.txt cannot be read: No such file or directory"),
        (["bench", "quality", "--window", "0"], "--window 0 is too small"),
        (["bench", "quality", "--max-kl", "-1"], "--max-kl -1 is not a number of 0 or more"),
        (["bench", "quality", "--min-agreement", "90"], "--min-agreement 90 is not a share"),
        (["bench", "serving"], "Missing option '--url'"),
        (["bench", "serving", "--url", "U", "--rate", "0"], "--rate 0 is not a number above 0"),
        (["bench", "serving", "--url", "U", "--trace", "none.csv"], "--trace none.csv cannot be read"),
        (["bench", "soak", "--duration-s", "5"], "--duration-s 5 cannot be judged: 60 or more, such as 900."),
        (["bench", "soak", "--clients", "0"], "--clients 0 is too small: the smallest is 1"),
        (["bench", "soak", "--url", "U"], "--url needs --admin-url"),
        (["play"], "Missing argument 'FILE...'"),
        (["play", "no-such-file.yaml"], "no-such-file.yaml: there is no such file"),
        (["play", "FILE", "--port", "70000"], "--port 70000 is not a port"),
        (["play", "FILE", "--model", "chat"], "--model and --stay belong to --ask"),
        (["play", "FILE", "--ask", "Hi", "--model", "gpt"], "--model gpt is not in the files: write --model chat"),
        (["play", "FILE", "--host", "host.invalid", "--port", "0"], "--host host.invalid is not an address"),
        (["play", "FILE", "FILE"], "metadata.name chat is also used in"),
        (["validate", "no-such-file.yaml"], "there is no such file"),
        (["frobnicate"], "No such command 'frobnicate'"),
    ],
)
def test_wrong_input(arguments: list[str], sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    quickstart = str(EXAMPLES / "quickstart.yaml")
    exit_code = run([quickstart if argument == "FILE" else argument for argument in arguments])
    output = capfd.readouterr()
    assert sentence in " ".join(output.err.split())
    assert "Traceback" not in output.err
    assert (exit_code, output.out) == (2, "")


def test_every_mistake_of_a_manifest_is_one_line(tmp_path: Path) -> None:
    manifest = tmp_path / "wrong.yaml"
    manifest.write_text((EXAMPLES / "quickstart.yaml").read_text().replace("0.2", "20").replace("2048", "many"))
    for arguments in (["validate", str(manifest)], ["play", str(manifest)]):
        result = command(*arguments)
        lines = result.stderr.splitlines()
        assert (result.returncode, len(lines), result.stdout) == (2, 2, "")
        assert "spec.engine.gpuMemoryUtilization: " in lines[0]
        assert "spec.engine.maxModelLen: " in lines[1]


def test_a_file_without_services(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "other.yaml"
    manifest.write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n")
    assert run(["play", str(manifest)]) == 2
    assert "there is no InferenceService in it" in capfd.readouterr().err


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_valid(example: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", str(example)]) == 0
    assert capfd.readouterr().err == ""


def test_help_imports_nothing_heavy() -> None:
    heavy = [
        "torch",
        "transformers",
        "starlette",
        "fastapi",
        "uvicorn",
        "httpx",
        "watchfiles",
        "pagefleet.engine.config",
    ]
    code = (
        "import sys; from pagefleet.cli.main import run; "
        f"code = run(['--help']); sys.exit(code or str([name for name in {heavy} if name in sys.modules] or ''))"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert result.stderr.strip() == ""
    assert "play" in result.stdout


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_version(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    assert capfd.readouterr().out.startswith("pagefleet ")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(["engine", "serve", "M"]) == 2
    assert capfd.readouterr().err == (
        "This command needs torch, not installed here: run pip install 'pagefleet[engine]'.\n"
    )


def test_the_unexpected_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def fail(*_arguments: object) -> None:
        raise RuntimeError("the sky\nfell")

    monkeypatch.setattr("pagefleet.cli.play.run.play", fail)
    monkeypatch.delenv("PAGEFLEET_DEBUG", raising=False)
    assert run(["play", "x.yaml"]) == 1
    assert capfd.readouterr().err == (
        "Unexpected error: RuntimeError: the sky fell (set PAGEFLEET_DEBUG=1 to see the traceback).\n"
    )
    monkeypatch.setenv("PAGEFLEET_DEBUG", "1")
    with pytest.raises(RuntimeError):
        run(["play", "x.yaml"])


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pagefleet.cli.play.run.play", interrupt)
    assert run(["play", "x.yaml"]) == 130


def test_a_choice_beyond_its_limit_is_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = make_byte_level_tokenizer(make_tiny_llama(tmp_path / "model"))
    text = tmp_path / "text.txt"
    text.write_text("0123456789" * 20)
    options = [
        "--text",
        str(text),
        "--window",
        "300",
        "--weights",
        "int8",
        "--kv-cache-dtype",
        "auto",
        "--threads",
        "1",
    ]
    assert run(["bench", "quality", "--model", str(folder), *options, "--max-kl", "0"]) == 1
    output = capfd.readouterr()
    assert "positions in 1 windows of 300 tokens" in output.out
    last_line = output.err.splitlines()[-1]
    assert last_line.startswith("weights int8 without lm_head, KV cache auto: KL ")
    assert last_line.endswith("is above --max-kl 0")
