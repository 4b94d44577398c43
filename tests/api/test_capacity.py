import json

import pytest
from pydantic import ValidationError

from pagefleet.api.capacity import CapacityReport, EnginePhase


def test_unknown_is_null_and_never_zero() -> None:
    wire = json.loads(CapacityReport(phase=EnginePhase.STARTING).model_dump_json())
    assert {key: value for key, value in wire.items() if value is not None} == {
        "phase": "Starting",
        "draining": False,
        "startup_stage_seconds": {},
    }


def test_round_trip() -> None:
    report = CapacityReport(
        phase=EnginePhase.READY, blocks_total=10, blocks_active=3, startup_stage_seconds={"load": 2.5}
    )
    assert CapacityReport.model_validate_json(report.model_dump_json()) == report


def test_report_of_a_newer_engine_can_be_read() -> None:
    assert CapacityReport.model_validate({"phase": "Ready", "invented_later": 1}).phase is EnginePhase.READY


@pytest.mark.parametrize(
    ("active", "total", "occupancy"), [(3, 4, 0.75), (0, 4, 0.0), (None, 4, None), (3, None, None), (0, 0, None)]
)
def test_occupancy(active: int | None, total: int | None, occupancy: float | None) -> None:
    report = CapacityReport(phase=EnginePhase.READY, blocks_active=active, blocks_total=total, blocks_cached=4)
    assert report.occupancy == occupancy


@pytest.mark.parametrize(
    "wrong", [{"blocks_total": -1}, {"progress": 1.5}, {"step_time_s": float("inf")}, {"queue_age_s": float("nan")}]
)
def test_impossible_numbers_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        CapacityReport.model_validate({"phase": "Ready", **wrong})
