"""`pagefleet.autoscaler.reading` and `service_settings`: what is said becomes numbers or a refusal."""

from typing import Any

import pytest

from pagefleet.api.capacity import CapacityReport
from pagefleet.autoscaler.reading import UnusableReport, read_report
from pagefleet.autoscaler.records import read_service
from pagefleet.autoscaler.schedule import ScheduledTime
from pagefleet.autoscaler.service_settings import settings_of
from tests.autoscaler.cluster_objects import service_object
from tests.autoscaler.fake_engines import BOUNDS_S, idle_report
from tests.autoscaler.test_service_memory import PLAN


def report(**values: Any) -> CapacityReport:
    return CapacityReport.model_validate(idle_report(**values))


def histogram(*counts: int) -> dict[str, Any]:
    return {"bounds_s": BOUNDS_S, "counts": counts}


def test_counters_are_taken_as_they_are_and_latencies_by_the_objectives() -> None:
    found = read_report(
        report(
            requests_total=90,
            finished_total=80,
            queue_depth=3,
            blocks_active=100,
            ttft=histogram(10, 20, 30, 6, 0, 4),
            time_per_output_token=histogram(50, 0, 0, 0, 0, 5),
        ),
        read_s=7.0,
        ttft_slo_s=2.0,
        itl_slo_s=0.25,
    )
    assert found is not None
    assert (found.read_s, found.arrivals_total, found.admitted_total, found.finished_total) == (7.0, 90, 87, 80)
    assert (found.first_tokens_total, found.late_first_tokens_total) == (70, 10)
    assert found.slow_answers_total == 30, "half of the first bucket, and what is above all"
    assert found.occupancy == pytest.approx(100 / 25_625)


def test_without_an_objective_nothing_is_late() -> None:
    found = read_report(report(ttft=histogram(0, 0, 0, 0, 0, 9)), read_s=0.0, ttft_slo_s=None, itl_slo_s=None)
    assert found is not None
    assert (found.first_tokens_total, found.late_first_tokens_total, found.slow_answers_total) == (9, 0, 0)


@pytest.mark.parametrize("unknown", ["blocks_total", "queue_depth", "requests_total"])
def test_an_engine_that_starts_has_no_load_that_is_known(unknown: str) -> None:
    assert read_report(report(**{unknown: None}), read_s=0.0, ttft_slo_s=None, itl_slo_s=None) is None


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"in_flight": None}, "in_flight is null on an engine that runs"),
        ({"steps_total": 2**53 + 1}, r"steps_total is \d+, which no counter reaches"),
        ({"blocks_active": 30_000}, "blocks_active is 30000 of 25625 blocks"),
    ],
)
def test_what_cannot_be_is_refused_by_name(values: dict[str, Any], told: str) -> None:
    with pytest.raises(UnusableReport, match=told):
        read_report(report(**values), read_s=0.0, ttft_slo_s=None, itl_slo_s=None)


SPEC = {
    "mode": "Active",
    "minReplicas": 2,
    "maxReplicas": 8,
    "slo": {"ttft": "2s", "itl": "100ms"},
    "targets": {"kvOccupancy": 0.7, "queueDepth": 6},
    "spareReplicas": 1,
    "schedule": [{"days": ["Sat", "Sun"], "from": "22:00", "to": "02:00", "minReplicas": 4}],
    "pauseScaleDown": True,
    "scaleToZero": {"idle": "5m"},
}


def test_the_users_words_become_settings() -> None:
    service = read_service(service_object(autoscaling=SPEC, status={"plan": PLAN})).service
    found = settings_of(service)
    assert found is not None
    assert (found.min_replicas, found.max_replicas, found.spare_replicas) == (2, 8, 1)
    weekend = ScheduledTime(days=(5, 6), from_s=22 * 3600, to_s=26 * 3600, time_zone="UTC", min_replicas=4)
    assert found.schedule == (weekend,)
    assert (found.ttft_slo_s, found.itl_slo_s, found.idle_to_zero_s) == (2.0, 0.1, 300.0)
    assert (found.kv_occupancy_target, found.queue_depth_target) == (0.7, 6)
    assert (found.may_scale_up, found.may_scale_down) == (True, False)
    assert found.speed is not None
    assert (found.speed.kv_tokens, found.speed.block_size) == (410_000, 16)


def test_what_engines_have_goes_before_what_was_planned() -> None:
    service = read_service(service_object(autoscaling=SPEC, status={"plan": PLAN})).service
    reports = [
        report(blocks_total=blocks, startup_stage_seconds={"load": 30.0, "measure": 5.0}) for blocks in (1000, 900)
    ]
    found = settings_of(service, reports)
    assert found is not None
    assert found.speed is not None
    assert (found.speed.kv_tokens, found.lead_time_s) == (900 * 16, 35.0)


def test_without_the_section_nothing_is_decided() -> None:
    item = service_object()
    del item["spec"]["autoscaling"]
    assert settings_of(read_service(item).service) is None
