import pytest

from pagefleet.api.capacity import EnginePhase
from pagefleet.engine.config import EngineConfig, ServerConfig
from pagefleet.engine.core_client import CoreClient
from pagefleet.engine.errors import EngineDead
from pagefleet.engine.messages import StartupProgress
from pagefleet.engine.metrics import EngineMetrics
from pagefleet.engine.server.state import PodSettings, ServerState


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
    report = state.capacity()

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
    report = state.capacity()

    assert (report.phase, report.detail, report.progress) == (phase, detail, progress.fraction)


def test_a_stage_that_ends_is_timed(state: ServerState) -> None:
    assert state.enter_stage(StartupProgress(stage="download", fraction=0.1)) is None
    assert state.enter_stage(StartupProgress(stage="download", fraction=0.9)) is None
    ended = state.enter_stage(StartupProgress(stage="load"))

    assert ended is not None
    assert ended[0] == "download"
    assert state.capacity().startup_stage_seconds == {"download": ended[1]}


def test_a_dead_core_is_a_failure(state: ServerState) -> None:
    state.client.failure = EngineDead("the core is gone")

    assert (state.capacity().phase, state.capacity().detail) == (EnginePhase.FAILED, "the core is gone")
    assert not state.is_live
    assert not state.is_ready


def test_the_environment_gives_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_UID", "")
    assert PodSettings.from_environment().pod_uid is None
    monkeypatch.setenv("POD_UID", "abc")
    assert PodSettings.from_environment().pod_uid == "abc"
