"""`bench serving`: arrivals, latencies by hand, and a run against a real server."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagefleet.engine.bench.arrivals import Arrival, fit, poisson_arrivals, read_trace
from pagefleet.engine.bench.latencies import Slo, Timeline, percentiles, summarize
from pagefleet.engine.bench.serving import ServingOptions, run_serving
from pagefleet.engine.errors import StartupError
from tests.support.engine_server import EngineServer
from tests.support.tiny_models import make_tiny_model

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
SLO = Slo(ttft_s=60.0, tpot_s=60.0)
MOONCAKE = """{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 1500, "input_length": 700, "output_length": 7, "hash_ids": [0, 2]}
"""


def test_poisson_arrivals_have_the_rate_and_are_always_the_same() -> None:
    arrivals = poisson_arrivals(2000, 5.0)
    assert arrivals == poisson_arrivals(2000, 5.0)
    assert arrivals[0].at_s == 0
    assert 2000 / arrivals[-1].at_s == pytest.approx(5.0, rel=0.1)
    assert all(16 <= each.prompt_tokens <= 512 and 16 <= each.output_tokens <= 256 for each in arrivals)


def test_azure_traces(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    arrivals = read_trace(path, 10)
    assert [(each.prompt_tokens, each.output_tokens) for each in arrivals] == [(374, 44), (396, 109), (879, 55)]
    assert [each.at_s for each in arrivals] == pytest.approx([0, 4.314579, 4.541877], abs=1e-5)
    assert len(read_trace(path, 2)) == 2


def test_mooncake_traces_share_the_tokens_of_equal_blocks(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE)
    first, second = read_trace(path, 10)
    assert (first.at_s, second.at_s) == (0, 1.5)
    prompts = [first.prompt(0, 1000), second.prompt(1, 1000)]
    assert [len(prompt) for prompt in prompts] == [600, 700]
    assert prompts[0][:512] == prompts[1][:512]
    assert prompts[0][512:600] != prompts[1][512:600]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (
            "a.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n",
            r"line 2 is not Azure's: write TIMESTAMP",
        ),
        ("a.csv", "time,tokens\n1,2\n", r"line 2 is not Azure's"),
        ("a.csv", "", r"holds no request; use Azure's CSV"),
        ("a.jsonl", '{"timestamp": 0}\n', r"line 1 is not Mooncake's: write \{\"timestamp\""),
        ("a.jsonl", "[]\n", r"line 1 is not Mooncake's"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(StartupError, match=sentence):
        read_trace(tmp_path / name, 10)


def test_a_missing_trace_is_named() -> None:
    with pytest.raises(StartupError, match=r"--trace none\.csv cannot be read: No such file"):
        read_trace(Path("none.csv"), 1)


def test_long_requests_are_cut_and_times_shrink() -> None:
    fitted = fit([Arrival(4.0, 5000, 300), Arrival(8.0, 10, 20)], most_tokens=100, speed=2.0)
    assert fitted == [Arrival(2.0, 50, 50), Arrival(4.0, 10, 20)]


def test_latencies_by_hand() -> None:
    good = Timeline(due_s=1.0, token_times_s=[1.5, 1.6, 1.9], end_s=2.0, output_tokens=3, cached_tokens=16)
    late = Timeline(due_s=0.0, token_times_s=[3.0], end_s=4.0, output_tokens=1)
    failed = Timeline(due_s=0.0, end_s=1.0, error="503 busy")
    assert good.ttft_s == pytest.approx(0.5)
    assert good.gaps_s == pytest.approx([0.1, 0.3])
    assert good.tpot_s == pytest.approx(0.2)
    assert late.tpot_s == 0.0
    summary = summarize([good, late, failed], Slo(ttft_s=2.0, tpot_s=0.25))
    assert (summary["completed"], summary["errors"], summary["good_requests"]) == (2, 1, 1)
    assert (summary["output_tokens"], summary["cached_tokens"]) == (4, 16)
    assert summary["goodput_requests_per_second"] == 0.25
    assert percentiles([1.0, 2.0, 3.0]) == {"mean": 2.0, "p50": 2.0, "p90": 2.8, "p99": 2.98}
    assert percentiles([])["p99"] is None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    model = make_tiny_model(tmp_path_factory.mktemp("model"))
    with EngineServer(model) as running:
        yield running.wait_ready()


async def test_a_run_counts_what_the_server_counts(server: EngineServer, tmp_path: Path) -> None:
    path, lines = tmp_path / "serving.json", list[str]()
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 10 * i, "input_length": 40, "output_length": 3 + i, "hash_ids": [0]} for i in range(6)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ServingOptions(url=server.url, trace=trace, requests=6, vocabulary_size=500, slo=SLO, json_path=path)
    report = await asyncio.to_thread(run_serving, options, lines.append)
    assert json.loads(path.read_text()) == report
    assert (report["completed"], report["errors"], report["cut_requests"]) == (6, 0, 0)
    assert report["good_requests"] == 6
    assert report["output_tokens"] == sum(3 + i for i in range(6))
    assert {"ttft_seconds", "itl_seconds", "e2e_seconds", "goodput_requests_per_second"} <= set(report)
    assert int(str(report["cached_tokens"])) > 0, "all prompts are the same block of the trace"
    assert "6 of 6 requests completed" in lines[0]


async def test_refusals_are_errors_and_not_good(server: EngineServer) -> None:
    lines: list[str] = []
    options = ServingOptions(url=f"{server.url}/v1/", requests=2, rate_per_s=100, vocabulary_size=1_000_000, slo=SLO)
    report = await asyncio.to_thread(run_serving, options, lines.append)
    assert (report["completed"], report["errors"], report["good_requests"]) == (0, 2, 0)
    assert "400" in lines[-1]


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(StartupError, match=r"--url http://127\.0\.0\.1:9 does not answer: .*for example --url"):
        run_serving(ServingOptions(url="http://127.0.0.1:9", slo=SLO), print)
