"""The life of one replica, as pure functions: every change takes the time as an argument.

    Starting → Downloading → Loading → Ready → Draining → Stopped
                                       Ready ⇄ Retiring → Draining   (one too many: called back if demand returns)
       any of them, process ends with 2      → Failed      (the user's mistake: starting again cannot help)
       any of them, process ends otherwise   → Restarting  (waits for the back-off, then Starting)

The back-off doubles from 1 s to 30 s with every crash in a row; a crash after 60 s of being ready begins a new row.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from pagefleet.api.capacity import CapacityReport

FIRST_BACK_OFF_S = 1.0
LONGEST_BACK_OFF_S = 30.0
HEALTHY_AFTER_S = 60.0
USER_MISTAKE_EXIT_CODE = 2
HUNG_EXIT_CODE = 1000
"""Stands for an engine that was ended because it said that it is not live; no process ends with it."""


class Phase(StrEnum):
    """Name where a replica is in its life; Retiring, Restarting and Stopped are play's own."""

    STARTING = "Starting"
    DOWNLOADING = "Downloading"
    LOADING = "Loading"
    READY = "Ready"
    RETIRING = "Retiring"
    DRAINING = "Draining"
    FAILED = "Failed"
    RESTARTING = "Restarting"
    STOPPED = "Stopped"


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """Hold what is known of one replica. Times are on the caller's monotonic clock, in seconds."""

    phase: Phase = Phase.STARTING
    progress: float | None = None
    """Share of the phase that is done, 0 to 1; None when unknown."""
    message: str = ""
    """Why it is in this phase, or what it does there."""
    crashes_in_a_row: int = 0
    restarts: int = 0
    ready_since: float | None = None
    restart_at: float | None = None
    is_called_back: bool = False
    """Whether it was to leave, and does not say yet that it takes requests again."""


def back_off_s(crashes_in_a_row: int) -> float:
    """Return the seconds to wait after the n-th crash in a row, n from 1."""
    return min(FIRST_BACK_OFF_S * 2.0 ** min(crashes_in_a_row - 1, 30), LONGEST_BACK_OFF_S)


def after_report(state: ReplicaState, report: CapacityReport, now: float) -> ReplicaState:
    """Take over what the running engine says of itself; it never says that it has stopped."""
    if state.phase in (Phase.DRAINING, Phase.RETIRING):
        return state  # asked to leave: late answers from before the signal must not make it routable again
    phase = Phase(report.phase.value)
    if state.is_called_back and phase is Phase.DRAINING:
        return state  # a late answer from before it was called back
    since = state.ready_since if state.ready_since is not None else now
    return replace(
        state,
        phase=phase,
        progress=report.progress,
        message=report.detail or "",
        ready_since=since if phase is Phase.READY else None,
        restart_at=None,
        is_called_back=False,
    )


def after_exit(state: ReplicaState, exit_code: int, reason: str, now: float) -> ReplicaState:
    """Decide what follows the end of the process: stop, fail for good, or start again after a back-off."""
    if state.phase in (Phase.DRAINING, Phase.RETIRING):
        return replace(state, phase=Phase.STOPPED, progress=None, message="", ready_since=None)
    if exit_code == USER_MISTAKE_EXIT_CODE:
        return replace(state, phase=Phase.FAILED, progress=None, message=reason, ready_since=None)
    was_healthy = state.ready_since is not None and now - state.ready_since >= HEALTHY_AFTER_S
    crashes = 1 if was_healthy else state.crashes_in_a_row + 1
    return replace(
        state,
        phase=Phase.RESTARTING,
        progress=None,
        message=f"{describe_exit(exit_code)}: {reason}" if reason else describe_exit(exit_code),
        crashes_in_a_row=crashes,
        ready_since=None,
        restart_at=now + back_off_s(crashes),
        is_called_back=False,
    )


def after_restart(state: ReplicaState) -> ReplicaState:
    """Count a new process; the crash row goes on until the replica has been healthy."""
    return replace(state, phase=Phase.STARTING, progress=None, message="", restarts=state.restarts + 1, restart_at=None)


def retiring(state: ReplicaState) -> ReplicaState:
    """Mark a ready replica as one too many: it takes no requests, and ends when those in flight have finished."""
    return replace(state, phase=Phase.RETIRING, progress=None, message="finishes its requests")


def called_back(state: ReplicaState) -> ReplicaState:
    """Call a retiring replica back: it is ready again once its engine says so."""
    return replace(state, phase=Phase.STARTING, message="takes requests again", is_called_back=True)


def draining(state: ReplicaState) -> ReplicaState:
    """Mark the replica as leaving: from here it is never ready again."""
    return replace(state, phase=Phase.DRAINING, progress=None, message="finishes its requests")


def describe_exit(exit_code: int) -> str:
    """Say how a process ended; negative codes are signals."""
    if exit_code == HUNG_EXIT_CODE:
        return "hung and was ended"
    if exit_code == -9:
        return "killed (signal 9, often out of memory)"
    if exit_code < 0:
        return f"killed by signal {-exit_code}"
    return f"ended with code {exit_code}"
