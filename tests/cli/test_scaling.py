"""`pagefleet.cli.play.scaling`, `division` and `holding`: what is decided over local replicas, without any process."""

import asyncio
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pagefleet.api.capacity import CapacityReport, EnginePhase
from pagefleet.api.manifest import load_manifests
from pagefleet.api.v1alpha1 import ServicePhase
from pagefleet.autoscaler.decision import Decision, Reason
from pagefleet.autoscaler.snapshot import ReplicaPhase
from pagefleet.cli.play import holding
from pagefleet.cli.play.division import Need, divide
from pagefleet.cli.play.holding import NotHeld, WaitingRoom
from pagefleet.cli.play.manifests import load
from pagefleet.cli.play.plan import WantedService
from pagefleet.cli.play.replica import Phase, ReplicaState
from pagefleet.cli.play.reports import describe_decisions, scaling_text
from pagefleet.cli.play.scaling import LocalReplica, ScalingTerms, ServiceScaling, local_settings, take_snapshot
from pagefleet.cli.play.table import render_table
from pagefleet.cli.play.view import ReplicaView, ScalingView, ServiceView, view_service
from tests.cli.test_manifests import manifest
from tests.support import checkpoints

GIB = 2**30
COUNTERS: dict[str, Any] = {
    name: 0 for name, field in CapacityReport.model_fields.items() if name.endswith("_total") and field.default is None
} | dict.fromkeys(("queue_depth", "tokens_queued", "running", "in_flight"), 0)


def terms(autoscaling: str, *, replicas: int = 1, most: int = 9, note: str = "") -> ScalingTerms:
    (loaded,) = load_manifests(
        manifest(spec=f", replicas: {replicas}, autoscaling: {{{autoscaling}}}"), "m.yaml"
    ).services
    spec = loaded.service.spec.autoscaling
    assert spec is not None
    return ScalingTerms(
        service=loaded.service,
        is_active=spec.mode == "Active",
        most_replicas=min(most, spec.max_replicas),
        memory_note=note,
    )


def local(name: str, phase: Phase = Phase.READY, *, in_flight: int = 0, at_s: float = 100.0, **report: Any) -> Any:
    counted = {**COUNTERS, "blocks_total": 10, "blocks_active": 0, "block_size": 16, **report}
    told = CapacityReport(phase=EnginePhase.READY, **counted)
    return LocalReplica(
        name=name,
        phase=phase,
        created_s=0.0,
        ready_s=50.0 if phase is Phase.READY else None,
        report=told if phase is Phase.READY else None,
        reported_s=at_s,
        in_flight=in_flight,
    )


def test_a_snapshot_tells_phases_as_the_autoscaler_knows_them() -> None:
    settings = local_settings(terms("maxReplicas: 3"), ())
    assert settings is not None
    called_back = replace(local("e", Phase.STARTING), ready_s=50.0)
    replicas = [*(local(str(phase), phase) for phase in Phase), called_back]
    seen = take_snapshot(replicas, settings, time_s=200.0, specified=2, held_requests=3)
    assert {one.name: one.phase for one in seen.replicas} == {
        **dict.fromkeys(("Starting", "Downloading", "Loading", "Failed", "Restarting"), ReplicaPhase.PENDING),
        **dict.fromkeys(("Ready", "e"), ReplicaPhase.READY),
        **dict.fromkeys(("Retiring", "Draining"), ReplicaPhase.DRAINING),
    }
    assert (seen.specified, seen.held_requests) == (2, 3)
    assert {one.name: one.created_s for one in seen.pending}["Failed"] == 200.0, "another in its place would fail too"


def test_a_reading_has_what_the_router_has_sent_and_the_engine_has_not_told() -> None:
    settings = local_settings(terms("maxReplicas: 3"), ())
    assert settings is not None
    replicas = [local("a", in_flight=4), local("b", finished_total=None)]
    first, second = take_snapshot(replicas, settings, time_s=101, specified=2, held_requests=0).replicas
    assert first.reading is not None
    assert (first.reading.in_flight, first.reading.read_s) == (4, 100.0)
    assert second.reading is None, "a report with holes says nothing"
    scaling = ServiceScaling(terms("maxReplicas: 3"), 2)
    scaling.decide(replicas, held_requests=0, time_s=101.0)
    assert scaling.decision is not None
    assert "UnusableReport" in scaling.decision.conditions
    assert scaling.decision.notes == ("b's report: finished_total is null on an engine that runs",)


def test_decisions_are_done_in_active_and_told_in_recommend() -> None:
    full = [local("a", blocks_active=10)]
    active = ServiceScaling(terms("maxReplicas: 3"), 1)
    active.decide(full, held_requests=0, time_s=101.0)
    recommended = ServiceScaling(terms("mode: Recommend, maxReplicas: 3"), 1)
    recommended.decide(full, held_requests=0, time_s=101.0)
    assert (active.replicas, recommended.replicas) == (2, 1)
    for scaling in (active, recommended):
        assert scaling.decision is not None
        assert (scaling.decision.desired, scaling.decision.reason) == (2, Reason.KV_OCCUPANCY)


def test_the_memory_of_the_machine_is_named_where_it_ends_before_the_maximum() -> None:
    scaling = ServiceScaling(terms("maxReplicas: 3", most=1, note="a replica needs 9 GiB"), 1)
    scaling.decide([local("a", blocks_active=10)], held_requests=0, time_s=101.0)
    assert scaling.replicas == 1
    assert scaling.decision is not None
    assert (scaling.decision.limited_by, scaling.decision.unlimited) == ("machineMemory", 2)


@pytest.mark.parametrize(
    ("autoscaling", "replicas", "first"),
    [
        ("maxReplicas: 3", 5, 3),
        ("minReplicas: 2, maxReplicas: 3", 1, 2),
        ("maxReplicas: 3", 0, 1),
        ("maxReplicas: 3, scaleToZero: {}", 0, 0),
        ("mode: Recommend, maxReplicas: 3", 5, 5),
    ],
)
def test_a_service_begins_within_its_bounds(autoscaling: str, replicas: int, first: int) -> None:
    assert terms(autoscaling, replicas=replicas).first_replicas() == first


def test_edited_bounds_move_the_present_number_at_the_next_decision() -> None:
    scaling = ServiceScaling(terms("maxReplicas: 3"), 3)
    scaling.adopt(terms("maxReplicas: 2"))
    scaling.decide([local(name) for name in "abc"], held_requests=0, time_s=101.0)
    assert scaling.replicas == 2
    scaling.adopt(terms("mode: Recommend, maxReplicas: 2", replicas=1))
    assert scaling.replicas == 1, "the user's number again"


def need(replicas: int, least: int | None = None, *, is_scaled: bool = True) -> Need:
    return Need(
        replicas=replicas, is_scaled=is_scaled, least_bytes=least, usable_bytes=None if least is None else 10 * GIB
    )


@pytest.mark.parametrize(
    ("needs", "most"),
    [
        ([need(8, 3 * GIB)], [3]),
        ([need(2, 3 * GIB)], [2]),
        ([need(8)], [8]),
        ([need(8, 11 * GIB)], [1]),
        ([need(8, 2 * GIB), need(2, is_scaled=False)], [3, 2]),
        ([need(8, 2 * GIB), need(8, 2 * GIB)], [3, 2]),
        ([need(1, 2 * GIB), need(8, 2 * GIB)], [1, 4]),
        ([need(0), need(3, 2 * GIB)], [0, 3]),
    ],
)
def test_the_machine_is_divided_for_as_many_as_it_holds(needs: list[Need], most: list[int]) -> None:
    assert divide(needs) == most


def test_a_manifest_is_scaled_as_far_as_the_memory_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagefleet.cli.plan.this_machine.memory_limit_bytes", lambda: 128 * GIB)
    monkeypatch.setattr("pagefleet.cli.plan.this_machine.has_fast_bfloat16", lambda: False)
    model = checkpoints.write_model(tmp_path / "Llama-3.1-8B", checkpoints.llama_3_1_8b())
    spec = ", engine: {maxModelLen: 4096}, autoscaling: {maxReplicas: 9}"
    file = tmp_path / "m.yaml"
    file.write_text(manifest(spec=spec, uri=f"file://{model}"))
    loaded = load([file])
    (service,) = loaded.services
    assert service.scaling is not None
    assert service.scaling.most_replicas == 3
    assert service.scaling.memory_note.startswith("a replica needs 31.7 GiB of the 115.2 GiB that")
    assert service.scaling.memory_note.endswith("enough for 3")
    assert loaded.memory_share == pytest.approx(1 / 3)
    assert service.scaling.service.status.plan is not None
    file.write_text(manifest(spec=spec.replace("9", "2"), uri=f"file://{model}"))
    assert load([file]).services[0].scaling.memory_note == ""  # type: ignore[union-attr]


# ---- what people see ----


def seen(decision: Decision, *, is_active: bool = True, held: int = 0, note: str = "") -> ServiceView:
    scaling = ScalingView(decision, is_active, wakes=False, held_requests=held, memory_note=note)
    return view_service("chat", WantedService("chat", "chat", 1, ()), (), scaling)


UP = Decision(desired=3, current=1, reason=Reason.DEMAND, forecast_per_s=2.0, service_rate_per_s=0.8)
HELD_BACK = Decision(desired=1, current=1, reason=Reason.STEADY, limited_by="machineMemory", unlimited=3)


def test_a_decision_is_told_once() -> None:
    (line,) = describe_decisions([], [seen(UP)])
    assert line == "chat: scales from 1 to 3 replicas for Demand, 2 requests/s to come, 0.8 a replica"
    done = replace(UP, current=3, reason=Reason.STEADY)
    assert describe_decisions([seen(UP)], [seen(done)]) == []
    assert describe_decisions([seen(done)], [seen(done)]) == []
    assert describe_decisions([], [seen(UP, is_active=False)])[0].startswith("chat: would scale from 1 to 3")
    (line,) = describe_decisions([], [seen(HELD_BACK, note="it needs 9 GiB")])
    assert line == "chat: stays at 1 replica, limited by machineMemory (3 without it): it needs 9 GiB"
    assert describe_decisions([seen(HELD_BACK)], [seen(HELD_BACK)]) == []


def test_the_table_shows_what_is_decided_and_why() -> None:
    assert scaling_text(seen(UP, held=2).scaling) == (  # type: ignore[arg-type]
        "1 → 3 Demand, 2 requests/s to come, 0.8 a replica, 2 held"
    )
    console = Console(file=io.StringIO(), width=200)
    console.print(render_table([seen(HELD_BACK, note="it needs 9 GiB")], "http://127.0.0.1:1"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "1 Steady, limited by machineMemory" in text
    assert "it needs 9 GiB" in text
    console.print(render_table([view_service("chat", None, ())], "http://127.0.0.1:1"))
    assert "Scaling" not in console.file.getvalue().removeprefix(text)  # type: ignore[attr-defined]


def test_a_service_that_scales_up_is_not_degraded_until_something_crashes() -> None:
    def phase(rising: ReplicaState) -> ServicePhase:
        views = [
            ReplicaView(number, state, is_current=True, report=None, tokens_per_s=None, log_path=Path("log"))
            for number, state in enumerate((ReplicaState(Phase.READY), rising), 1)
        ]
        scaling = ScalingView(UP, is_active=True, wakes=False, held_requests=0, memory_note="")
        return view_service("chat", WantedService("chat", "chat", 2, ()), views, scaling).phase

    assert phase(ReplicaState(Phase.LOADING)) is ServicePhase.READY
    assert phase(ReplicaState(Phase.LOADING, crashes_in_a_row=1)) is ServicePhase.DEGRADED


# ---- holding ----


async def test_a_full_room_and_a_long_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "MOST_HELD", 2)
    monkeypatch.setattr(holding, "LONGEST_HOLD_S", 0.05)
    room = WaitingRoom()
    waiting = [asyncio.create_task(room.wait(lambda: False)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(NotHeld, match="2 requests wait"):
        await room.wait(lambda: True)
    waiting[0].cancel()
    with pytest.raises(NotHeld, match=r"not start within 0\.05 s"):
        await waiting[1]
    assert room.waiting == 0
