"""What `/capacity` of a real engine says while requests come, wait, run and end."""

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from pagefleet.api.capacity import CapacityReport
from tests.support.engine_server import EngineServer

COUNTERS = tuple(name for name in CapacityReport.model_fields if name.endswith("_total") and name != "blocks_total")


@contextmanager
def stopped_core(engine: EngineServer) -> Iterator[None]:
    """A core that looks at nothing, as in a very long step."""
    core = engine.core_process_id()
    os.kill(core, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(core, signal.SIGCONT)


def report_of(engine: EngineServer) -> CapacityReport:
    return CapacityReport.model_validate(engine.capacity())


def idle_report(engine: EngineServer) -> CapacityReport:
    return CapacityReport.model_validate(engine.wait_capacity(in_flight=0, running=0, queue_depth=0))


def growth(before: CapacityReport, after: CapacityReport) -> Callable[[str], float]:
    def of(name: str) -> float:
        grown: float = getattr(after, name) - getattr(before, name)
        return grown

    return of


def test_requests_are_queued_while_the_core_is_busy(engine: EngineServer, http: httpx.Client) -> None:
    body = {"prompt": [7] * 40, "max_tokens": 5, "ignore_eos": True, "n": 2}
    before = idle_report(engine)
    with ThreadPoolExecutor(3) as pool:
        with stopped_core(engine):
            answers = [pool.submit(http.post, "/v1/completions", json=body) for _ in range(3)]
            engine.wait_capacity(timeout_s=20, queue_depth=3)
            began_s = time.monotonic()
            waiting = report_of(engine)
            time.sleep(0.3)
            later = report_of(engine)
            waited_s = time.monotonic() - began_s
        assert all(answer.result().is_success for answer in answers)
    after = idle_report(engine)

    assert (waiting.tokens_queued, waiting.in_flight, waiting.running) == (120, 3, 0)
    assert waiting.queue_age_s is not None
    assert later.queue_age_s is not None
    assert 0.3 <= later.queue_age_s - waiting.queue_age_s <= waited_s
    assert growth(before, waiting)("requests_total") == growth(before, after)("requests_total") == 6
    assert growth(before, waiting)("finished_total") == 0
    grew = growth(before, after)
    assert (grew("finished_total"), grew("finished_output_tokens_total"), grew("generation_tokens_total")) == (
        6,
        30,
        30,
    )
    assert grew("prompt_tokens_total") == 120
    # Two of three prompts are in the cache but for their last tokens, or all are computed at once.
    assert 40 <= grew("computed_tokens_total") <= 120
    assert grew("computed_tokens_total") + grew("prefix_hit_tokens_total") == 120
    assert grew("sequence_steps_total") == 6 * 4
    assert grew("kv_tokens_read_total") == 6 * (40 + 41 + 42 + 43)
    assert grew("steps_total") >= 5
    assert grew("step_seconds_total") > 0
    assert after.ttft is not None
    assert before.ttft is not None
    assert after.ttft.total - before.ttft.total == 3
    assert after.ttft.above(0.25) - before.ttft.above(0.25) == 3, "they waited for the core"


def test_aborted_and_refused_requests(engine: EngineServer, http: httpx.Client) -> None:
    before = idle_report(engine)
    with http.stream(
        "POST", "/v1/completions", json={"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    ) as response:
        next(response.iter_bytes())
    for wrong in ({"prompt": "x", "max_tokens": 10**6}, {"prompt": "x", "n": 0}, {"model": "another", "prompt": "x"}):
        assert not http.post("/v1/completions", json=wrong).is_success
    with stopped_core(engine):
        with pytest.raises(httpx.ReadTimeout):  # gone before the core has taken it
            httpx.post(f"{engine.url}/v1/completions", json={"prompt": "x"}, timeout=0.5)
        lost = engine.wait_capacity(timeout_s=20, in_flight=0)
        assert lost["queue_depth"] == 0
    after = idle_report(engine)

    grew = growth(before, after)
    assert grew("finished_total") == 1, "the core had taken one of them"
    assert 1 <= grew("requests_total") <= 2, "the one that was lost while it waited may have been seen"
    assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).is_success
    assert growth(before, idle_report(engine))("requests_total") == 2, "it takes the lost one's place"


def test_counters_never_fall_under_load(engine: EngineServer, http: httpx.Client) -> None:
    bodies = [{"prompt": [token] * 30, "max_tokens": 20, "n": 1 + token % 2, "ignore_eos": True} for token in range(24)]
    before = idle_report(engine)
    reports = [before]
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(http.post, "/v1/completions", json=body) for body in bodies]
        while not all(answer.done() for answer in answers):
            reports.append(report_of(engine))
    after = idle_report(engine)
    reports.append(after)

    assert len(reports) > 4
    for earlier, later in itertools.pairwise(reports):
        for name in COUNTERS:
            assert getattr(later, name) >= getattr(earlier, name), name
        assert later.requests_total is not None
        assert later.finished_total is not None
        assert later.requests_total >= later.finished_total
    grew = growth(before, after)
    assert (grew("requests_total"), grew("finished_total")) == (36, 36)
    assert grew("finished_output_tokens_total") == 36 * 20
