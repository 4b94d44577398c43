import time

import msgspec
import pytest

from pagefleet.api.capacity import EnginePhase
from pagefleet.engine.config import EngineConfig, ServerConfig
from pagefleet.engine.core_client import CoreClient, Unseen
from pagefleet.engine.errors import EngineDead
from pagefleet.engine.messages import StartupProgress
from pagefleet.engine.metrics import EngineMetrics
from pagefleet.engine.server.capacity import CapacityReporter
from pagefleet.engine.server.state import PodSettings, ServerState
from tests.engine.test_metrics import a_step

CORE_STATE = a_step(1).state
"""Three requests of 30 tokens wait."""


@pytest.fixture
def state() -> ServerState:
    engine = EngineConfig(model="org/name")
    return ServerState(
        engine=engine,
        server=ServerConfig(),
        pod=PodSettings(pod_uid="uid"),
        client=CoreClient(engine),
        metrics=EngineMetrics(model_name="org/name"),
    )


def test_a_fresh_engine_knows_nothing_and_says_null(state: ServerState) -> None:
    report = CapacityReporter(state).report()

    assert report.phase == EnginePhase.STARTING
    assert report.blocks_total is report.queue_depth is report.running is report.generation_tokens_total is None
    assert (report.in_flight, report.draining, report.pod_uid) == (0, False, "uid")
    assert report.config_hash == EngineConfig(model="org/name").config_hash


@pytest.mark.parametrize(
    ("progress", "phase", "detail"),
    [
        (StartupProgress(stage="download", fraction=0.634), EnginePhase.DOWNLOADING, "Downloading 63 %"),
        (StartupProgress(stage="download"), EnginePhase.DOWNLOADING, "Downloading"),
        (StartupProgress(stage="load", fraction=0.5), EnginePhase.LOADING, "Loading weights 50 %"),
        (StartupProgress(stage="warm_up"), EnginePhase.LOADING, "Warming up"),
    ],
)
def test_the_stage_is_the_phase(state: ServerState, progress: StartupProgress, phase: EnginePhase, detail: str) -> None:
    state.enter_stage(progress)
    report = CapacityReporter(state).report()

    assert (report.phase, report.detail, report.progress) == (phase, detail, progress.fraction)


def test_a_stage_that_ends_is_timed(state: ServerState) -> None:
    assert state.enter_stage(StartupProgress(stage="download", fraction=0.1)) is None
    assert state.enter_stage(StartupProgress(stage="download", fraction=0.9)) is None
    ended = state.enter_stage(StartupProgress(stage="load"))

    assert ended is not None
    assert ended[0] == "download"
    assert CapacityReporter(state).report().startup_stage_seconds == {"download": ended[1]}


def test_a_dead_core_is_a_failure(state: ServerState) -> None:
    state.client.failure = EngineDead("the core is gone")

    report = CapacityReporter(state).report()
    assert (report.phase, report.detail) == (EnginePhase.FAILED, "the core is gone")
    assert not state.is_live
    assert not state.is_ready


def test_the_environment_gives_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_UID", "")
    assert PodSettings.from_environment().pod_uid is None
    monkeypatch.setenv("POD_UID", "abc")
    assert PodSettings.from_environment().pod_uid == "abc"


def test_a_request_is_queued_before_the_core_knows_of_it(state: ServerState) -> None:
    state.client.state = msgspec.structs.replace(CORE_STATE, queue_age_s=None)
    reporter = CapacityReporter(state)
    arrival_s = time.monotonic() - 5.0
    with state.preparing.one(arrival_s) as hand_over:
        report = reporter.report()
        assert (report.queue_depth, report.requests_total, report.tokens_queued) == (4, 1, 30)
        assert report.queue_age_s == pytest.approx(5.0, abs=1.0)
        hand_over()
        assert reporter.report().queue_depth == 3
    state.client.unseen["a"] = Unseen(arrival_s=arrival_s, prompt_tokens=12)
    state.client.choices_submitting = 2
    report = reporter.report()
    assert (report.queue_depth, report.requests_total, report.tokens_queued) == (4, 2, 42)


def test_a_counter_never_falls(state: ServerState) -> None:
    state.client.state = CORE_STATE
    reporter = CapacityReporter(state)
    with state.preparing.one(time.monotonic()):
        assert reporter.report().requests_total == 1
    assert reporter.report().requests_total == 1, "it was refused"
    state.metrics.count_started(prompt_tokens=3, choices=1)
    assert reporter.report().requests_total == 1
    state.metrics.count_started(prompt_tokens=3, choices=1)
    assert reporter.report().requests_total == 2


def test_the_queue_grows_older_while_the_core_says_nothing(state: ServerState) -> None:
    state.client.state = msgspec.structs.replace(CORE_STATE, queue_age_s=2.0, monotonic_s=time.monotonic() - 7.0)
    assert CapacityReporter(state).report().queue_age_s == pytest.approx(9.0, abs=1.0)
    state.client.state = msgspec.structs.replace(CORE_STATE, queue_age_s=None)
    assert CapacityReporter(state).report().queue_age_s == 0.0


def test_what_only_the_prefix_cache_holds_is_not_active(state: ServerState) -> None:
    state.client.state = CORE_STATE
    report = CapacityReporter(state).report()
    assert (report.blocks_active, report.blocks_cached, report.occupancy) == (4, 1, 0.4)
