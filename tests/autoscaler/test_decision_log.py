"""`pagefleet.autoscaler.decision_log`: what is left out can be made again, and a log can be cut."""

from dataclasses import replace
from pathlib import Path

import pytest

from pagefleet.autoscaler.decide import decide
from pagefleet.autoscaler.decision_log import WHOLE_AFTER_S, DecisionLog, LogFile
from pagefleet.autoscaler.decision_record import read_records
from pagefleet.autoscaler.process_settings import LoggedTicks
from pagefleet.autoscaler.records import read_service
from pagefleet.autoscaler.service_memory import ServiceMemory
from pagefleet.autoscaler.snapshot import Replica
from pagefleet.autoscaler.state import State
from tests.autoscaler.cluster_objects import service_object
from tests.autoscaler.snapshots import TICK_S, reading, ready

SERVICE = read_service(service_object(replicas=2))


def replicas(now_s: float, arrivals: int, *, silent: bool = False) -> tuple[Replica, ...]:
    other = ready("b", reading(0.0 if silent else now_s - 0.02))
    return ready("a", reading(now_s - 0.01, arrivals_total=arrivals)), other


def logged(ticks: LoggedTicks, arrivals: list[int], *, silent: bool = False) -> tuple[list[str], State]:
    """Return the log of a service whose first replica has taken on so many requests at each tick."""
    lines: list[str] = []
    log, memory = DecisionLog(lines.append, ticks), ServiceMemory(SERVICE)
    for tick, count in enumerate(arrivals, start=1):
        seen = replicas(TICK_S * tick, count, silent=silent)
        log.take(memory.step(SERVICE, seen, [], now_s=TICK_S * tick, hold=None))
    return lines, memory.state


def test_ticks_in_which_only_time_passes_are_left_out_and_can_be_made_again() -> None:
    arrivals = [5] * 20 + [50] + [50] * 20 + [51]
    lines, expected = logged(LoggedTicks.CHANGED, arrivals)
    assert len(lines) < 10
    found = list(read_records(lines))
    assert sum(len(record.skipped_s) for record in found) + len(found) == len(arrivals)
    state, before = State(), found[0].snapshot
    for record in found:
        for snapshot in record.skipped_snapshots(before):
            _, state = decide(snapshot, state, record.settings)
        before = record.snapshot
        decision, state = decide(record.snapshot, state, record.settings)
        assert decision.desired == record.decision.desired
    assert replace(state, totals=(), rates=(), readings={}) == replace(expected, totals=(), rates=(), readings={})


def test_all_and_none() -> None:
    assert len(logged(LoggedTicks.ALL, [5] * 20)[0]) == 20
    assert logged(LoggedTicks.NONE, [5] * 20)[0] == []


def test_a_report_that_gets_older_is_a_change() -> None:
    assert len(logged(LoggedTicks.CHANGED, [5] * 10, silent=True)[0]) == 10


def test_state_and_settings_are_written_again_now_and_then() -> None:
    lines, _ = logged(LoggedTicks.CHANGED, [5] * int(3.5 * WHOLE_AFTER_S / TICK_S))
    whole = [record for record in read_records(lines) if record.state is not None]
    assert [record.snapshot.time_s for record in whole] == [TICK_S + n * WHOLE_AFTER_S for n in range(4)]
    assert next(read_records(lines[1:])) == whole[1]


def test_a_service_that_is_gone_begins_anew() -> None:
    lines: list[str] = []
    log, memory = DecisionLog(lines.append, LoggedTicks.CHANGED), ServiceMemory(SERVICE)
    for tick in (1, 2):
        log.take(memory.step(SERVICE, replicas(TICK_S * tick, 5), [], now_s=TICK_S * tick, hold=None))
        log.keep_only([])
    assert [record.state is not None for record in read_records(lines)] == [True, True]


def test_a_file_is_appended_to_and_a_full_disk_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        appended = LogFile(str(tmp_path / "log"))
        appended.write("line")
        appended.close()
    assert (tmp_path / "log").read_text() == "line\nline\n"
    full = LogFile("/dev/full")
    for _ in range(2):
        full.write("line")
    full.close()
    assert len(caplog.records) == 1
    LogFile("-").write("seen")
    assert capsys.readouterr().out == "seen\n"
    with pytest.raises(OSError, match="No such file"):
        LogFile(str(tmp_path / "no" / "log"))
