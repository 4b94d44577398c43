"""`pagefleet.cli.play.replica`: phases and back-off as functions of what happened and when."""

import pytest

from pagefleet.api.capacity import CapacityReport, EnginePhase
from pagefleet.cli.play.replica import (
    Phase,
    ReplicaState,
    after_exit,
    after_report,
    after_restart,
    back_off_s,
    draining,
)


def test_back_off_doubles_from_1_s_to_30_s() -> None:
    assert [back_off_s(crashes) for crashes in (1, 2, 3, 4, 5, 6, 7, 1000)] == [1, 2, 4, 8, 16, 30, 30, 30]


@pytest.mark.parametrize("phase", list(EnginePhase))
def test_a_running_engine_speaks_for_itself(phase: EnginePhase) -> None:
    state = after_report(ReplicaState(), CapacityReport(phase=phase, progress=0.5, detail="half"), now=7.0)
    assert (state.phase, state.progress, state.message) == (phase.value, 0.5, "half")
    assert state.ready_since == (7.0 if phase is EnginePhase.READY else None)


def test_ready_since_is_the_first_moment_of_being_ready() -> None:
    ready = CapacityReport(phase=EnginePhase.READY)
    assert after_report(after_report(ReplicaState(), ready, now=1.0), ready, now=9.0).ready_since == 1.0


def test_a_draining_replica_is_never_ready_again() -> None:
    state = draining(ReplicaState(phase=Phase.READY, ready_since=0.0))
    assert after_report(state, CapacityReport(phase=EnginePhase.READY), now=1.0).phase is Phase.DRAINING
    assert after_exit(state, 0, "", now=2.0).phase is Phase.STOPPED
    assert after_exit(state, 2, "said no", now=2.0).phase is Phase.STOPPED


def test_the_users_mistake_is_final() -> None:
    state = after_exit(ReplicaState(), 2, "--block-size 0 is too small.", now=1.0)
    assert (state.phase, state.message, state.restart_at) == (Phase.FAILED, "--block-size 0 is too small.", None)


@pytest.mark.parametrize(
    ("exit_code", "message"),
    [(1, "ended with code 1: why"), (0, "ended with code 0: why"), (-15, "killed by signal 15: why")],
)
def test_any_other_end_starts_again(exit_code: int, message: str) -> None:
    state = after_exit(ReplicaState(), exit_code, "why", now=10.0)
    assert (state.phase, state.message, state.restart_at) == (Phase.RESTARTING, message, 11.0)
    assert after_restart(state).phase is Phase.STARTING
    assert after_restart(state).restarts == 1


def test_crashes_in_a_row_wait_longer_until_60_s_of_health() -> None:
    state = ReplicaState()
    waits = []
    for now in (0.0, 10.0, 20.0):
        state = after_exit(state, 1, "", now)
        waits.append((state.restart_at or 0.0) - now)
        state = after_restart(state)
    assert waits == [1, 2, 4]
    ready = after_report(state, CapacityReport(phase=EnginePhase.READY), now=30.0)
    assert after_exit(ready, 1, "", now=89.0).restart_at == 89.0 + 8
    assert after_exit(ready, 1, "", now=90.0).restart_at == 90.0 + 1
