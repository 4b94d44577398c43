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


def test_what_our_policy_decided_can_be_replayed(trace: Path, tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    assert run(["simulate", "--trace", str(trace), "--log", str(log)]) == 0
    assert len(log.read_text().splitlines()) >= 60
    assert run(["replay", str(log)]) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--suite", "acceptance"], "needs the public traces: write --traces DIR"),
        (["--rates", "600"], "--rates 600 is neither a file nor stretches: write for example --rates 600:3,600:12"),
        (["--rates", "600:0"], "--rates 600:0 holds no request"),
        (["--rates", "-5:3"], "is neither a file nor stretches"),
        (["--scrape-loss", "1.5"], "--scrape-loss 1.5 is not 0 to 1: write for example --scrape-loss 0.05"),
        (["--scrape-interval", "0"], "--scrape-interval 0 is not 0.1 to 3600"),
        (["--prompt-tokens", "0"], "--prompt-tokens 0 is too small"),
        (["--suite", "acceptance", "--traces", "/nowhere"], "--traces /nowhere has no AzureLLMInferenceTrace_conv.csv"),
        (["--trace", "/nowhere.csv"], "--trace /nowhere.csv is no file"),
        (["--times", "0"], "--times 0 is too small"),
        (["--hint", "3600:8"], "--hint 3600:8 is no span with its replicas: write for example --hint 3600-5400:8"),
        (["--hint", "5400-3600:8"], "--hint 5400-3600:8 is no span"),
        (["--hint", "60-120:50"], "--hint 60-120:50 asks for more than --max-replicas 40: write --max-replicas 50"),
        (["--spare", "-1"], "--spare -1 is not 0 to 40: write for example --spare 1"),
        (["--start-s", "0"], "--start-s 0 is not 1 to 3600: write for example --start-s 30"),
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


@pytest.mark.parametrize("router", ["round-robin", "stale", "prefix"])
def test_generated_chats_go_through_a_router(router: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--scrape-loss", "0.1", "--scrape-delay", "2", "--scrape-interval", "4"]
    assert run(["simulate", "--rates", "60:3,60:6", "--router", router, *more]) == 0
    assert "a second" in capsys.readouterr().out


def test_what_lets_a_surge_find_replicas_ready_is_tried_beside_ours(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    surge = ["--rates", "240:2,120:8", "--prompt-tokens", "2000", "--initial-replicas", "1"]
    ready = ["--hint", "240-400:4", "--spare", "1", "--start-s", "30"]
    assert run(["simulate", *surge, *ready, "--json", str(results)]) == 0
    found = {each["policy"]: each for each in json.loads(results.read_text())["cases"]["chats"]}
    assert found["pagefleet + hints"]["setting"] == "4 from 00:04"
    for name in ("pagefleet + hints", "pagefleet + spare", "pagefleet + start"):
        assert found[name]["attainment"] > found["pagefleet"]["attainment"]
