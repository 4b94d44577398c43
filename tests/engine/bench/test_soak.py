"""`bench soak`: its verdict and mixture by hand, and a real server under it for a minute.

`PAGEFLEET_SOAK_S=900 pytest tests/engine/bench/test_soak.py` soaks for longer.
"""

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from pagefleet.engine.bench.server_metrics import Growth, Samples, metric_value, parse_metrics
from pagefleet.engine.bench.soak import SoakOptions, run_soak
from pagefleet.engine.bench.soak_clients import is_resting
from pagefleet.engine.bench.soak_memory import MIB, MemoryLevels, MemoryPoint, memory_levels, warm_up_s
from pagefleet.engine.bench.soak_outcomes import Outcome, Result, Seen, result_of
from pagefleet.engine.bench.soak_requests import BODY_LIMIT_BYTES, PARTS, Sizes, SoakRequest, soak_request
from pagefleet.engine.bench.soak_verdict import Aftermath, broken_rules
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.errors import EngineDead, StartupError
from pagefleet.engine.server.body import MAX_BODY_BYTES
from tests.support.engine_server import EngineServer
from tests.support.tiny_models import make_tiny_model

DURATION_S = float(os.environ.get("PAGEFLEET_SOAK_S", "60"))
SHORT_S = 5.0
EARLY_LARGE_BODIES = 10
"""A seed whose first 200 requests hold a body that is too large by its Content-Length and one in chunks."""
SIZES = Sizes(context_tokens=256, most_choices=3)
IDLE = {
    **dict.fromkeys(("in_flight", "running", "queue_depth", "blocks_active"), 0.0),
    "blocks_cached": 3.0,
    "blocks_free": 5.0,
    "blocks_total": 8.0,
}
WELL = Aftermath(capacity=IDLE, still_answers=True, exit_code=0)
FLAT = MemoryLevels(first_bytes=100 * MIB, last_bytes=101 * MIB, between_s=600)
ANSWERED = Result(
    kind="chat", outcome=Outcome.ANSWERED, status=200, prompt_tokens=7, completion_tokens=3, was_accepted=True
)
RESULTS = [
    ANSWERED,
    ANSWERED,
    Result(kind="leaves in stream", outcome=Outcome.LEFT, status=200, was_accepted=True),
    Result(kind="leaves while waiting", outcome=Outcome.LEFT),
    Result(kind="wrong field", outcome=Outcome.REFUSED, status=400),
    Result(kind="chat", outcome=Outcome.BUSY, status=503, retry_after_s=1),
]
COUNTERS = {
    "success stop": 1,
    "success length": 1,
    "success abort": 1,
    "errors 400": 1,
    "errors 503": 1,
    "prompt": 14,
    "output": 9,
}


def growth(**changed: float) -> Growth:
    """Return how much a server's counters grew, those of RESULTS but for what changed."""
    after: dict[Any, float] = {}
    for name, value in {**COUNTERS, **{name.replace("_", " "): value for name, value in changed.items()}}.items():
        match name.split():
            case ["success", reason]:
                after["pagefleet_request_success_total", (("finished_reason", reason),)] = value
            case ["errors", code]:
                after["pagefleet_request_errors_total", (("code", code),)] = value
            case ["prompt"]:
                after["pagefleet_prompt_tokens_total", ()] = value
            case ["output"]:
                after["pagefleet_generation_tokens_total", ()] = value
    return Growth({}, after)


def verdict(
    results: list[Result] = RESULTS,
    *,
    counters: Growth | None = None,
    capacity: dict[str, float] = IDLE,
    memory: MemoryLevels | None = FLAT,
    aftermath: Aftermath = WELL,
) -> list[str]:
    return broken_rules(results, counters or growth(), [IDLE, capacity], {"API": memory}, aftermath)


def test_all_is_well() -> None:
    assert verdict() == []
    assert verdict(aftermath=replace(WELL, exit_code=None)) == [], "a server of someone else's is not stopped"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"success_stop": 0, "success_length": 0}, "counts 1 accepted requests that ended, the clients saw 3 to 4"),
        ({"success_stop": 4}, "counts 5 finished requests, the clients saw 2 to 4"),
        ({"success_abort": 3}, "counts 3 aborted requests, the clients saw 0 to 2"),
        ({"success_error": 1, "success_abort": 0}, "counts 1 failed requests, the clients saw 0"),
        ({"errors_400": 0}, "counts 0 answers with 400, the clients saw 1"),
        ({"errors_500": 1}, "counts 1 answers with 500, the clients saw 0"),
        ({"errors_503": 3}, "counts 3 answers with 503, the clients saw 1 to 2"),
        ({"prompt": 13}, "counts 13 prompt tokens, the clients got 14"),
        ({"output": 5}, "counts 5 output tokens, the clients got 6"),
    ],
)
def test_counters_that_disagree(changed: dict[str, float], sentence: str) -> None:
    assert any(sentence in said for said in verdict(counters=growth(**changed)))


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ({"results": []}, "None of 0 requests was answered."),
        (
            {"results": [*RESULTS, Result(kind="chat", outcome=Outcome.LOST, number=7, reason="status 500")]},
            "Request 7 was lost (chat): status 500.",
        ),
        (
            {"capacity": {**IDLE, "blocks_free": 4.0}},
            "The KV blocks did not add up: 0 active, 3 cached and 4 free of 8.0.",
        ),
        ({"memory": None}, "The API process gave fewer than 8 samples of its memory after the warm-up."),
        (
            {"memory": replace(FLAT, last_bytes=103 * MIB)},
            "The API process grew by 3.0%, from 100.0 to 103.0 MiB (+18.0 MiB/hour); 2% is allowed.",
        ),
        (
            {"aftermath": replace(WELL, capacity={**IDLE, "running": 1})},
            "When all clients had gone, running was 1, not 0.",
        ),
        ({"aftermath": replace(WELL, still_answers=False)}, "The server did not answer a request after the soak."),
        ({"aftermath": replace(WELL, exit_code=-9)}, "The server ended with -9 on SIGTERM, not with 0."),
    ],
)
def test_a_broken_rule_is_one_sentence(broken: dict[str, Any], sentence: str) -> None:
    assert sentence in verdict(**broken)


def test_many_lost_requests_are_told_together() -> None:
    lost = [Result(kind="chat", outcome=Outcome.LOST, reason=str(number)) for number in range(9)]
    said = verdict([*RESULTS, *lost])
    assert len(said) == 6
    assert said[-1] == "4 more requests were lost."


def test_memory_levels_are_medians_of_quarters_behind_the_warm_up() -> None:
    points = [MemoryPoint(float(second), (900 if second < 30 else 100 + second // 70) * MIB) for second in range(110)]
    points[105] = MemoryPoint(105.0, 5000 * MIB)  # one large body
    levels = memory_levels(points, after_s=30)
    assert levels == MemoryLevels(first_bytes=100 * MIB, last_bytes=101 * MIB, between_s=60.0)
    assert levels.mib_per_hour == pytest.approx(60)
    assert levels.growth == pytest.approx(0.01)
    assert levels.is_flat
    assert replace(levels, last_bytes=50 * MIB).is_flat, "memory that is given back is no leak"
    assert not replace(levels, last_bytes=104 * MIB).is_flat
    assert memory_levels(points[:37], after_s=30) is None


def test_the_warm_up_is_a_fifth_and_half_a_minute_at_least() -> None:
    assert (warm_up_s(60), warm_up_s(900)) == (30, 180)


# ---- how requests end ----

STAYS = SoakRequest(kind="chat", path="/", body={})
STREAM = SoakRequest(kind="chat", path="/", body={"stream": True})
LEAVES = SoakRequest(kind="chat", path="/", body={"stream": True}, leaving="in_stream")
WRONG = SoakRequest(kind="chat", path="/", body={}, expected_status=HTTPStatus.BAD_REQUEST)
USAGE: dict[str, Any] = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
WHOLE: dict[str, Any] = {"choices": [{"index": 0, "finish_reason": "stop"}], "usage": USAGE}
ERROR: dict[str, Any] = {"error": {"message": "no"}}
EVENTS: list[dict[str, Any]] = [
    {"choices": [{"index": 0, "finish_reason": None}]},
    {"choices": [{"index": 0, "finish_reason": "length"}]},
    {"choices": [], "usage": USAGE},
]


@pytest.mark.parametrize(
    ("request_", "seen", "outcome"),
    [
        (STAYS, Seen(status=200, bodies=[WHOLE]), Outcome.ANSWERED),
        (STREAM, Seen(status=200, bodies=EVENTS, has_done_event=True), Outcome.ANSWERED),
        (LEAVES, Seen(status=200, bodies=EVENTS, has_done_event=True), Outcome.ANSWERED),
        (LEAVES, Seen(status=200, bodies=EVENTS[:1], has_left=True), Outcome.LEFT),
        (STAYS, Seen(status=503, retry_after="2", bodies=[ERROR]), Outcome.BUSY),
        (WRONG, Seen(status=400, bodies=[ERROR]), Outcome.REFUSED),
    ],
)
def test_ends_that_are_allowed(request_: SoakRequest, seen: Seen, outcome: Outcome) -> None:
    assert result_of(request_, seen).outcome is outcome


@pytest.mark.parametrize(
    ("request_", "seen", "reason"),
    [
        (STAYS, Seen(failure="ReadError"), "ReadError"),
        (STAYS, Seen(status=200, bodies=EVENTS[:1], has_left=True), "its client left, which it was not to do"),
        (STAYS, Seen(status=503, bodies=[ERROR]), "503 came with Retry-After '', not a number of seconds"),
        (STAYS, Seen(status=500, bodies=[ERROR]), "status 500 with {'message': 'no'}"),
        (WRONG, Seen(status=200, bodies=[WHOLE]), "status 200 instead of 400"),
        (WRONG, Seen(status=400, bodies=[{}]), "status 400 without a sentence: [{}]"),
        (STREAM, Seen(status=200, bodies=EVENTS), "the stream ended without [DONE], after 3 events: no error in it"),
        (
            STREAM,
            Seen(status=200, bodies=[*EVENTS[:2], *EVENTS], has_done_event=True),
            "choice 0 went on behind its end",
        ),
        (STREAM, Seen(status=200, bodies=[EVENTS[2]], has_done_event=True), "choices [] ended, 1 were asked for"),
        (STREAM, Seen(status=200, bodies=EVENTS[:2], has_done_event=True), "the usage is None"),
        (
            replace(STAYS, body={"n": 2}),
            Seen(status=200, bodies=[WHOLE]),
            "choices [0] ended, 2 were asked for",
        ),
    ],
)
def test_ends_that_are_lost_requests(request_: SoakRequest, seen: Seen, reason: str) -> None:
    result = result_of(request_, seen)
    assert (result.outcome, result.reason) == (Outcome.LOST, reason)


# ---- the mixture ----


def test_the_mixture_is_the_same_every_time_and_holds_every_kind() -> None:
    requests = [soak_request(EARLY_LARGE_BODIES, index, SIZES, has_priorities=True) for index in range(500)]
    assert requests == [soak_request(EARLY_LARGE_BODIES, index, SIZES, has_priorities=True) for index in range(500)]
    assert requests[:9] != [soak_request(4, index, SIZES, has_priorities=True) for index in range(9)]
    kinds = Counter(request.kind for request in requests)
    assert len(kinds) == len(PARTS)
    statuses = {request.expected_status for request in requests}
    assert statuses == {HTTPStatus(status) for status in (200, 400, 404, 413)}
    assert {request.leaving for request in requests} == {"never", "in_stream", "while_waiting"}
    assert {request.declares_length for request in requests if request.is_padded} == {True, False}
    systems = {str(request.body["messages"][0]) for request in requests if request.kind == "shared prefix"}
    assert len(systems) == 4


def test_a_server_that_serves_by_arrival_gets_no_priorities() -> None:
    requests = [soak_request(3, index, SIZES, has_priorities=False) for index in range(500)]
    assert not any("priority" in request.body for request in requests)


def test_a_padded_body_is_one_byte_too_large() -> None:
    request = SoakRequest(kind="too large", path="/", body={"a": 1}, is_padded=True)
    assert BODY_LIMIT_BYTES == MAX_BODY_BYTES
    assert len(request.content()) == MAX_BODY_BYTES + 1


def test_clients_rest_at_the_end_of_each_round() -> None:
    assert [second for second in range(60) if is_resting(second)] == [*range(25, 30), *range(55, 60)]


def test_metrics_are_read_without_the_labels_that_all_have() -> None:
    text = '# TYPE a counter\na_total{engine="0",model_name="m",code="400"} 2\n'
    samples: Samples = parse_metrics(text)
    assert metric_value(samples, "a_total", code="400") == 2
    assert metric_value(samples, "a_total", code="404") == 0
    assert Growth({}, samples)("a_total", code="400") == 2
    with pytest.raises(ValueError, match="exported twice"):
        parse_metrics(text + 'a_total{engine="0",model_name="m",code="400"} 3\n')


# ---- a real server ----


def test_a_server_that_is_not_ours_needs_a_process_of_a_server(tmp_path: Path) -> None:
    options = SoakOptions(
        engine=EngineConfig(model=""), url="http://127.0.0.1:9", admin_url="http://127.0.0.1:9", process_id=os.getpid()
    )
    with pytest.raises(StartupError, match=rf"--pid {os.getpid()} is no server's: .*no engine core among its children"):
        run_soak(options, print)


def test_a_running_server_is_soaked_and_left_alone(tmp_path: Path) -> None:
    lines: list[str] = []
    with small_server(tmp_path) as server:
        options = SoakOptions(
            engine=EngineConfig(model=""),
            url=f"{server.url}/v1/",
            admin_url=server.admin_url,
            duration_s=SHORT_S,
            clients=6,
        )
        report = run_soak(options, lines.append)
        assert report["broken_rules"] == [], "\n".join(lines)
        assert report["outcomes"]["answered"] > 0
        assert "priority" not in report["outcomes_by_kind"]
        assert report["memory"] == {}
        assert "--pid" in lines[-1]
        assert report["aftermath"]["exit_code"] is None
        assert server.process.poll() is None


def test_a_server_that_dies_ends_its_soak(tmp_path: Path) -> None:
    with small_server(tmp_path) as server:
        options = SoakOptions(
            engine=EngineConfig(model=""),
            url=server.url,
            admin_url=server.admin_url,
            process_id=server.process.pid,
            duration_s=60,
            clients=2,
        )
        killing = threading.Timer(2, os.kill, (server.core_process_id(), signal.SIGKILL))
        killing.start()
        with pytest.raises(EngineDead, match=r"the server's"):
            run_soak(options, print)
        killing.join()


def small_server(folder: Path) -> EngineServer:
    model = make_tiny_model(folder / "model", max_position_embeddings=256)
    return EngineServer(model, engine={"max_num_seqs": 4, "kv_cache_memory_bytes": 160 * 1024}).wait_ready()


@pytest.mark.timeout(DURATION_S + 600)
def test_a_soaked_server_loses_nothing_and_stays_flat(tmp_path: Path, measured: Callable[[str], None]) -> None:
    model = make_tiny_model(tmp_path / "model", max_position_embeddings=256)
    engine = EngineConfig(
        model=str(model),
        device="cpu",
        dtype="float32",
        threads=1,
        max_num_seqs=8,
        max_num_queued_reqs=8,
        kv_cache_memory_bytes=80 * 1024,
        scheduling_policy="priority",
    )
    path, lines = tmp_path / "soak.json", list[str]()
    options = SoakOptions(engine=engine, duration_s=DURATION_S, clients=24, seed=EARLY_LARGE_BODIES, json_path=path)

    report: dict[str, Any] = run_soak(options, lines.append)

    assert report["broken_rules"] == [], "\n".join(lines)
    assert json.loads(path.read_text()) == report
    assert report["outcomes"]["lost"] == 0
    assert min(report["outcomes"][outcome] for outcome in ("answered", "refused", "busy", "left")) > 0
    assert report["preemptions"] > 0, "the cache is too large to prove anything"
    assert report["prefix_hit_tokens"] > 0
    assert {"400", "404", "413", "503"} <= set(report["statuses"])
    assert report["samples"][-1]["metrics"] < 1000
    assert any(sample["in_flight"] == 0 for sample in report["samples"]), "the engine was never idle"
    for process, levels in report["memory"].items():
        measured(f"soak of {DURATION_S:g} s: {process} {levels['growth']:+.2%}, {levels['mib_per_hour']:+.1f} MiB/hour")
