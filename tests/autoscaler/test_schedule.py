"""`pagefleet.autoscaler.schedule`, and what a schedule does to decisions."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pagefleet.api.manifest import load_manifests
from pagefleet.api.v1alpha1.autoscaling_schedule import ScheduleEntry
from pagefleet.autoscaler.decision import Decision, Reason
from pagefleet.autoscaler.explain import CONDITION_SENTENCES, tell_decision
from pagefleet.autoscaler.schedule import ScheduledTime, schedule_mistakes, scheduled_minimum, scheduled_time
from pagefleet.autoscaler.settings import Settings
from pagefleet.autoscaler.snapshot import Snapshot
from tests.autoscaler.snapshots import SETTINGS, Load, Run
from tests.crds.judge import manifest

LEAD_TIME_S = 120.0


def entry(text: str, *, days: str = "", zone: str = "UTC", replicas: int = 6) -> ScheduledTime:
    """Return the time of a text such as `07:30-20:00`."""
    begin, end = text.split("-")
    more = {"days": days.split()} if days else {}
    spec = {"from": begin, "to": end, "timeZone": zone, "minReplicas": replicas, **more}
    return scheduled_time(ScheduleEntry.from_manifest(spec))


def at(text: str) -> float:
    """Return the seconds since 1970 of a moment in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("scheduled", "moment", "is_due"),
    [
        # 2 March 2026 is a Monday.
        (entry("07:30-20:00"), "2026-03-02T07:27:59", False),
        (entry("07:30-20:00"), "2026-03-02T07:28:00", True),
        (entry("07:30-20:00"), "2026-03-02T19:59:59", True),
        (entry("07:30-20:00"), "2026-03-02T20:00:00", False),
        (entry("07:30-20:00", days="Tue Wed"), "2026-03-02T12:00", False),
        (entry("07:30-20:00", days="Mon"), "2026-03-02T12:00", True),
        (entry("00:00-01:00", days="Tue"), "2026-03-02T23:59", True),
        (entry("22:00-02:00", days="Mon"), "2026-03-03T01:59:59", True),
        (entry("22:00-02:00", days="Mon"), "2026-03-03T02:00", False),
        (entry("22:00-02:00", days="Mon"), "2026-03-02T01:00", False),
        (entry("00:00-24:00", days="Mon"), "2026-03-02T23:59:59", True),
        # Summer time begins on 29 March 2026 at 2:00 in Berlin: 07:30 is 6:30 in UTC on the day before, 5:30 on it.
        (entry("07:30-20:00", zone="Europe/Berlin"), "2026-03-28T06:27:59", False),
        (entry("07:30-20:00", zone="Europe/Berlin"), "2026-03-28T06:28", True),
        (entry("07:30-20:00", zone="Europe/Berlin"), "2026-03-29T05:27:59", False),
        (entry("07:30-20:00", zone="Europe/Berlin"), "2026-03-29T05:28", True),
        # In Tokyo it is Tuesday already.
        (entry("07:30-20:00", days="Tue", zone="Asia/Tokyo"), "2026-03-02T22:40", True),
    ],
)
def test_replicas_are_asked_for_from_a_lead_time_before_until_the_end(
    scheduled: ScheduledTime, moment: str, is_due: bool
) -> None:
    assert scheduled_minimum([scheduled], at(moment), LEAD_TIME_S) == (6 if is_due else None)


def test_of_several_times_the_most_counts() -> None:
    schedule = [entry("07:00-20:00", replicas=3), entry("08:00-09:00", replicas=8)]
    found = [scheduled_minimum(schedule, at(f"2026-03-02T{hour:02d}:30"), LEAD_TIME_S) for hour in (6, 7, 8, 9)]
    assert found == [None, 3, 8, 3]


def test_a_time_zone_that_is_not_known_is_left_out_and_told() -> None:
    schedule = (entry("00:00-24:00", zone="Europe/Berlni"), entry("00:00-24:00", replicas=2))
    assert scheduled_minimum(schedule, at("2026-03-02T12:00"), LEAD_TIME_S) == 2
    assert schedule_mistakes(schedule) == (
        "schedule: timeZone Europe/Berlni is not known; write a name of the IANA database, such as Europe/Berlin",
    )
    decision, told, _ = decide_at("2026-03-02T12:00", replace(SETTINGS, schedule=schedule))
    assert decision.desired == 2
    assert decision.conditions == ("ScheduleIgnored",)
    assert "ScheduleIgnored" in CONDITION_SENTENCES
    assert told.endswith("such as Europe/Berlin")


def test_a_file_with_a_time_zone_that_is_not_known_is_refused() -> None:
    text = manifest("  autoscaling: {schedule: [{from: '07:30', to: '20:00', minReplicas: 1, timeZone: Mars/Crater}]}")
    (mistake,) = load_manifests(text, "chat.yaml").errors
    assert mistake.field == "spec.autoscaling.schedule[0].timeZone"
    assert mistake.message.startswith("timeZone Mars/Crater is not known; write ")


def decide_at(moment: str, settings: Settings, *, specified: int = 1, replicas: int = 1) -> tuple[Decision, str, Run]:
    """Decide for a small load that has been there for ten minutes, and tell it."""
    run, load = Run(settings, specified=specified), Load([f"r{index}" for index in range(replicas)], rate_per_s=1.0)
    end_s = at(moment)
    for tick in range(120, -1, -1):
        load.add(5.0)
        now_s = end_s - 5.0 * tick
        run.specified = specified
        seen = load.replicas(now_s)
        decision = run.tick(now_s, seen)
    snapshot = Snapshot(time_s=end_s, replicas=seen, specified=specified)
    return decision, tell_decision(decision, snapshot, run.state, run.settings), run


MORNING = replace(SETTINGS, schedule=(entry("07:30-20:00", zone="Europe/Berlin"),), lead_time_s=LEAD_TIME_S)


class TestDecisions:
    def test_replicas_are_started_a_lead_time_before(self) -> None:
        before, _, _ = decide_at("2026-03-02T06:27:55", MORNING)
        assert (before.desired, before.limited_by) == (1, None)
        decision, told, _ = decide_at("2026-03-02T06:28", MORNING)
        assert (decision.desired, decision.reason, decision.limited_by) == (6, Reason.SCHEDULE, "schedule")
        assert decision.counterfactual == "1 without schedule"
        assert told.startswith("1 to 6 replicas: ")
        assert told.endswith("the schedule asks for 6 from 07:30 Europe/Berlin")

    def test_they_stay_until_the_end_and_leave_step_by_step(self) -> None:
        during, _, _ = decide_at("2026-03-02T18:59:55", MORNING, specified=6, replicas=6)
        assert (during.desired, during.reason, during.limited_by) == (6, Reason.STEADY, "schedule")
        after, _, _ = decide_at("2026-03-02T19:00", MORNING, specified=6, replicas=6)
        assert (after.desired, after.reason) == (5, Reason.LESS_DEMAND)

    @pytest.mark.parametrize(
        ("changes", "desired", "limit"),
        [
            ({"max_replicas": 4}, 4, "schedule"),
            ({"min_replicas": 7}, 7, "minReplicas"),
            ({"may_scale_up": False}, 1, "pausedScaleUp"),
            ({"spare_replicas": 2}, 6, "schedule"),
        ],
    )
    def test_bounds_and_pauses_hold(self, changes: dict[str, Any], desired: int, limit: str) -> None:
        decision, _, _ = decide_at("2026-03-02T12:00", replace(MORNING, **changes))
        assert (decision.desired, decision.limited_by) == (desired, limit)

    def test_a_service_that_sleeps_is_woken_and_sleeps_again(self) -> None:
        begin_s, end_s = at("2026-03-02T07:28"), at("2026-03-02T07:40")
        schedule = (entry("07:30-07:40", replicas=3),)
        run = Run(replace(MORNING, schedule=schedule, idle_to_zero_s=60.0), specified=0)
        assert run.tick(begin_s - 5.0, []).desired == 0
        woken = run.tick(begin_s, [])
        assert (woken.desired, woken.reason) == (3, Reason.SCHEDULE)
        idle = Load(["r0", "r1", "r2"], rate_per_s=0.0)
        now_s = begin_s
        while now_s < end_s - 5.0:
            now_s += 5.0
            assert run.tick(now_s, idle.replicas(now_s)).desired == 3
        asleep = run.tick(end_s, idle.replicas(end_s))
        assert (asleep.desired, asleep.reason) == (0, Reason.IDLE)

    def test_a_clock_that_jumps_into_it_starts_nothing(self) -> None:
        load, run = Load(["r0"], rate_per_s=1.0), Run(MORNING)
        run.tick(at("2026-03-02T04:00"), load.replicas(at("2026-03-02T04:00")))
        decision = run.tick(at("2026-03-02T12:00"), load.replicas(at("2026-03-02T12:00")))
        assert (decision.desired, decision.conditions) == (1, ("ClockJump",))
