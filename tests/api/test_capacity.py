import json

import pytest
from pydantic import ValidationError

from pagefleet.api.capacity import CapacityReport, EnginePhase, LatencyHistogram


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


LATENCIES = LatencyHistogram(bounds_s=(0.5, 1.0, 2.0), counts=(10, 4, 6, 3))


@pytest.mark.parametrize(
    ("limit_s", "above"),
    [
        pytest.param(0.5, 13, id="a bound"),
        pytest.param(2.0, 3, id="the last bound"),
        pytest.param(0.0, 23, id="everything took time"),
        pytest.param(1.5, 3 + 3, id="half of a bucket"),
        pytest.param(0.25, 5 + 13, id="half of the first"),
        pytest.param(60.0, 3, id="what is above all bounds may be above any limit"),
    ],
)
def test_latencies_above_a_limit(limit_s: float, above: float) -> None:
    assert LATENCIES.above(limit_s) == pytest.approx(above)
    assert LATENCIES.total == 23


@pytest.mark.parametrize(
    ("bounds_s", "counts", "sentence"),
    [
        ((0.5, 1.0), (1, 2), "2 bounds need 3 counts, got 2"),
        ((1.0, 1.0), (1, 2, 3), "bounds must rise"),
        ((2.0, 1.0), (1, 2, 3), "bounds must rise"),
        ((1.0,), (1, -2), "greater than or equal to 0"),
    ],
)
def test_a_histogram_that_contradicts_itself_is_refused(
    bounds_s: tuple[float, ...], counts: tuple[int, ...], sentence: str
) -> None:
    with pytest.raises(ValidationError, match=sentence):
        LatencyHistogram(bounds_s=bounds_s, counts=counts)


def test_a_histogram_travels() -> None:
    report = CapacityReport(phase=EnginePhase.READY, ttft=LATENCIES)
    assert CapacityReport.model_validate_json(report.model_dump_json()).ttft == LATENCIES
