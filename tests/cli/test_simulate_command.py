"""`pagefleet simulate` as people type it."""

import json
from pathlib import Path

import pytest

from pagefleet.cli.main import run

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "short.csv"
    rows = [f"2023-11-16 18:{15 + second // 60}:{second % 60:02d}.5000000,900,120\n" for second in range(300)]
    path.write_text(HEADER + "".join(rows))
    return path


def test_a_trace_is_played_by_all_that_is_compared(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, table = tmp_path / "results.json", tmp_path / "table.md"
    assert (
        run(["simulate", "--trace", str(trace), "--times", "3", "--json", str(results), "--markdown", str(table)]) == 0
    )
    said = capsys.readouterr().out
    assert "short x 3: 900 requests in 0.1 h, 3.0 a second" in said
    assert "| pagefleet | **" in said
    written = json.loads(results.read_text())
    assert {each["policy"] for each in written["cases"]["short x 3"]} == {"pagefleet", "clairvoyant"}
    assert written["seed"] == 0
    assert table.read_text() in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--suite", "acceptance"], "needs the public traces: write --traces DIR"),
        (["--suite", "acceptance", "--traces", "/nowhere"], "--traces /nowhere has no AzureLLMInferenceTrace_conv.csv"),
        (["--trace", "/nowhere.csv"], "--trace /nowhere.csv is no file"),
        (["--times", "0"], "--times 0 is too small"),
        (["--initial-replicas", "50"], "write --max-replicas 50 or more"),
    ],
)
def test_mistakes_are_told(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_trace_that_is_none_is_told_with_its_line(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace.write_text(HEADER + "yesterday,1,2\n")
    assert run(["simulate", "--trace", str(trace)]) == 2
    assert "line 2" in capsys.readouterr().err


def test_a_case_that_is_not_in_the_suite_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (
        "AzureLLMInferenceTrace_conv.csv",
        "AzureLLMInferenceTrace_code.csv",
        "servegen_m-large_rate_10min.csv",
        "mooncake_conversation_trace.jsonl",
    ):
        (tmp_path / name).write_text("")
    assert run(["simulate", "--suite", "acceptance", "--traces", str(tmp_path), "--case", "day 4"]) == 2
    assert "--case day 4 is not in the suite" in capsys.readouterr().err
