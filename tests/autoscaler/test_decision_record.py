"""`pagefleet.autoscaler.decision_record`: what is read is what was decided, and replay goes on from it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet.autoscaler.decide import decide
from pagefleet.autoscaler.decision_record import (
    DecisionLogError,
    Record,
    at_time,
    hash_settings,
    read_records,
    write_record,
)
from pagefleet.autoscaler.schedule import ScheduledTime
from pagefleet.autoscaler.settings import Settings
from pagefleet.autoscaler.snapshot import Reading, Replica, Snapshot
from pagefleet.autoscaler.state import State
from tests.autoscaler.snapshots import SETTINGS, TICK_S, Load, pending, reading, ready

FLOATS = ("read_s", "queue_age_s", "step_seconds_total")


def counted(replicas: tuple[Replica, ...]) -> Iterator[Replica]:
    """Yield replicas that count whole requests, as engines do."""
    for one in replicas:
        if one.reading is None:
            yield one
            continue
        values = {name: getattr(one.reading, name) for name in Reading.__dataclass_fields__}
        whole = {name: value if name in FLOATS else round(value) for name, value in values.items()}
        yield replace(one, reading=Reading(**whole))


def records(ticks: int, *, settings: Settings = SETTINGS) -> list[Record]:
    """Return what a service decides while its load goes up."""
    load, state, specified, found = Load(["a", "b"], rate_per_s=3.0, queue_depth=1), State(), 2, []
    for tick in range(ticks):
        load.rate_per_s += 1.0
        load.add(TICK_S)
        now_s = TICK_S * (tick + 1)
        replicas = (*counted(load.replicas(now_s, silent=["b"] if tick % 3 == 0 else [])), pending("c", now_s - 1.0))
        snapshot = Snapshot(time_s=now_s, replicas=replicas, specified=specified)
        decision, after = decide(snapshot, state, settings)
        found.append(
            Record(
                namespace="team",
                service="chat",
                uid="1",
                mode="Active",
                snapshot=snapshot,
                settings=settings,
                state=state if tick % 10 == 0 else None,
                decision=decision,
            )
        )
        state, specified = after, decision.desired
    return found


def lines(found: list[Record]) -> list[str]:
    return [
        write_record(one, settings_hash=hash_settings(one.settings), with_settings=one.state is not None)
        for one in found
    ]


def test_what_is_read_is_what_was_written() -> None:
    night = ScheduledTime(days=(5, 6), from_s=79_200.0, to_s=93_600.0, time_zone="Europe/Berlin", min_replicas=4)
    scheduled = replace(SETTINGS, schedule=(night,))
    for settings in (SETTINGS, Settings(speed=None, ttft_slo_s=None, itl_slo_s=None), scheduled):
        found = records(25, settings=settings)
        assert list(read_records(lines(found))) == found


def test_a_line_is_json_for_everybody() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    for line in lines(records(2)):
        assert "\n" not in line
        assert json.loads(line, parse_constant=refuse)["service"] == "chat"


def test_replay_makes_the_same_decisions() -> None:
    state = State()
    for record in read_records(lines(records(25))):
        if record.state is not None:
            assert record.state == state
        decision, state = decide(record.snapshot, state, record.settings)
        assert decision == record.decision


def test_a_log_that_was_cut_is_read_from_its_first_whole_line() -> None:
    found = records(25)
    assert list(read_records(["autoscaler 1, health on port 8080", *lines(found)[3:]])) == found[10:]


def test_a_broken_line_is_named() -> None:
    whole = lines(records(3))
    for broken in (whole[1][:100], '{"namespace": "team"}'):
        with pytest.raises(DecisionLogError, match=r"^line 2 is no decision: .+; remove it$"):
            list(read_records([whole[0], broken]))


def test_settings_of_other_values_have_another_hash() -> None:
    assert hash_settings(Settings(speed=None)) == hash_settings(Settings(speed=None))
    assert hash_settings(Settings(speed=None)) != hash_settings(Settings(speed=None, max_replicas=2))


def test_a_snapshot_at_another_time_has_reports_of_the_same_age() -> None:
    snapshot = Snapshot(time_s=100.0, replicas=(ready("a", reading(98.0)), pending("b", 90.0)), specified=2)
    later = replace(records(1)[0], skipped_s=(105.0,))
    (moved,) = later.skipped_snapshots(snapshot)
    assert moved == at_time(snapshot, 105.0)
    assert moved.time_s == 105.0
    assert [one.reading.read_s for one in moved.ready if one.reading is not None] == [103.0]


ONE = records(1)[0]


@given(
    st.fixed_dictionaries(
        {name: st.floats(0, 1e12) if name in FLOATS else st.integers(0, 2**53) for name in Reading.__dataclass_fields__}
    )
)
def test_any_number_survives(values: dict[str, Any]) -> None:
    snapshot = Snapshot(time_s=1.0, replicas=(ready("a", Reading(**values)),), specified=1)
    again = replace(ONE, snapshot=snapshot)
    assert list(read_records(lines([again]))) == [again]
