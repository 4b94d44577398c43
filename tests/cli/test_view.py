"""`pagefleet.cli.play.view`, `reports` and `table`: what people see."""

import io
import itertools
from pathlib import Path

import pytest
from rich.console import Console

from pagefleet.api.capacity import CapacityReport, EnginePhase
from pagefleet.api.v1alpha1 import ServicePhase
from pagefleet.cli.play.plan import WantedService
from pagefleet.cli.play.replica import Phase, ReplicaState
from pagefleet.cli.play.reports import curl_line, describe_changes
from pagefleet.cli.play.table import render_table
from pagefleet.cli.play.view import ReplicaView, ServiceView, view_service

URL = "http://127.0.0.1:8080"


def replica(phase: Phase, *, is_current: bool = True, message: str = "", progress: float | None = None) -> ReplicaView:
    report = CapacityReport(phase=EnginePhase.READY, blocks_total=10, blocks_active=5, queue_depth=2)
    state = ReplicaState(phase, progress, message)
    is_ready = phase is Phase.READY
    return ReplicaView(1, state, is_current, report if is_ready else None, 10.0 if is_ready else None, Path("/tmp/log"))


def view(*replicas: ReplicaView, asked: int = 1, refusal: str = "") -> ServiceView:
    return view_service("chat", WantedService("chat", "chat", asked, (), refusal), replicas)


@pytest.mark.parametrize(
    ("expected", "seen"),
    [
        (ServicePhase.PENDING, view()),
        (ServicePhase.STOPPED, view(asked=0)),
        (ServicePhase.FAILED, view(refusal="no")),
        (ServicePhase.FAILED, view(replica(Phase.FAILED))),
        (ServicePhase.STARTING, view(replica(Phase.FAILED), replica(Phase.RESTARTING), asked=2)),
        (ServicePhase.LOADING, view(replica(Phase.STARTING), replica(Phase.LOADING), asked=2)),
        (ServicePhase.READY, view(replica(Phase.READY))),
        (ServicePhase.DEGRADED, view(replica(Phase.READY), replica(Phase.RESTARTING), asked=2)),
        (ServicePhase.UPDATING, view(replica(Phase.READY, is_current=False), replica(Phase.LOADING))),
        (ServicePhase.DEGRADED, view(replica(Phase.READY, is_current=False), replica(Phase.FAILED))),
        (ServicePhase.DEGRADED, view(replica(Phase.READY, is_current=False), refusal="no")),
        (ServicePhase.DRAINING, view_service("chat", None, [replica(Phase.DRAINING)])),
    ],
)
def test_one_phase_for_all_replicas(expected: ServicePhase, seen: ServiceView) -> None:
    assert seen.phase is expected


def test_numbers_are_of_the_replicas_that_answer() -> None:
    seen = view(replica(Phase.READY), replica(Phase.READY), replica(Phase.LOADING), asked=3)
    assert (seen.ready, seen.asked, seen.occupancy, seen.queue_depth, seen.tokens_per_s) == (2, 3, 0.5, 4, 20.0)


def test_what_is_unknown_is_not_zero() -> None:
    seen = view(replica(Phase.LOADING))
    assert (seen.occupancy, seen.queue_depth, seen.tokens_per_s) == (None, None, None)


@pytest.mark.parametrize(
    ("one", "progress", "message"),
    [
        (replica(Phase.DOWNLOADING, progress=0.634), "Downloading 63 %", ""),
        (replica(Phase.LOADING, message="Warming up"), "Warming up", ""),
        (replica(Phase.LOADING), "Loading", ""),
        (replica(Phase.FAILED, message="No memory."), "", "No memory. (log: /tmp/log)"),
        (
            replica(Phase.RESTARTING, message="ended with code 1"),
            "",
            "starts again soon, ended with code 1 (log: /tmp/log)",
        ),
        (replica(Phase.READY), "", ""),
    ],
)
def test_progress_and_message(one: ReplicaView, progress: str, message: str) -> None:
    assert (view(one).progress, view(one).message) == (progress, message)


def test_events_are_told_once() -> None:
    steps = [
        [],
        [view(replica(Phase.STARTING))],
        [view(replica(Phase.DOWNLOADING, progress=0.1))],
        [view(replica(Phase.DOWNLOADING, progress=0.7))],
        [view(replica(Phase.READY))],
        [view(replica(Phase.READY))],
        [view(replica(Phase.RESTARTING, message="ended with code 1"))],
        [],
    ]
    lines = [line for before, after in itertools.pairwise(steps) for line in describe_changes(before, after, URL)]
    assert lines == [
        "chat: Starting, 0 of 1 ready",
        "chat: Downloading, 0 of 1 ready",
        "chat: Ready, 1 of 1 ready at http://127.0.0.1:8080/v1",
        "chat: Starting: starts again soon, ended with code 1 (log: /tmp/log)",
        "chat: gone",
    ]


def test_the_table_shows_brackets_as_they_are() -> None:
    console = Console(width=160, file=io.StringIO())
    with console.capture() as captured:
        console.print(render_table([view(replica(Phase.FAILED, message="[red]not markup"))], URL))
    text = captured.get()
    assert "[red]not markup" in text
    assert f"{URL}/v1" in text


@pytest.mark.parametrize("needs_key", [False, True])
def test_the_line_to_paste(needs_key: bool) -> None:
    line = curl_line(URL, "chat", needs_key=needs_key)
    assert line.startswith(f"curl {URL}/v1/chat/completions ")
    assert ("Bearer $PAGEFLEET_API_KEY" in line) is needs_key
