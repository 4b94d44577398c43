"""The table of `pagefleet top`: what it shows of a service, and in which order."""

from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from pagefleet.cli.top.table import render_table
from pagefleet.cli.top.view import view_service, view_services


def service(
    name: str = "chat", *, replicas: int = 3, ready: int = 3, phase: str = "Ready", **scaling: Any
) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": phase, "reason": "ReplicasAnswer", "readyReplicas": ready}
    if scaling:
        status["autoscaling"] = scaling
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"replicas": replicas}, "status": status}


def cells(one: dict[str, Any]) -> dict[str, Text]:
    table = render_table([view_service(one)], "")
    found = {}
    for column in table.columns:
        (cell,) = column.cells
        assert isinstance(cell, Text)
        found[str(column.header)] = cell
    return found


BUSY: dict[str, Any] = {
    "mode": "Active",
    "desired": 5,
    "reason": "Demand",
    "limitedBy": "maxReplicas",
    "signals": {
        "kvPercent": 83,
        "queueDepth": 12,
        "requestsPerSecond": 7.25,
        "missedPercent": 6.0,
        "ageSeconds": 2.4,
        "silentReplicas": 1,
    },
    "conditions": ["StuckPending"],
}


def test_a_busy_service() -> None:
    shown = {name: (cell.plain, cell.style) for name, cell in cells(service(ready=2, **BUSY)).items()}
    assert shown == {
        "NAMESPACE": ("team", ""),
        "NAME": ("chat", ""),
        "PHASE": ("Ready", ""),
        "READY": ("2/3", "yellow"),
        "DESIRED": ("5", ""),
        "KV%": ("83", "yellow"),
        "QUEUE": ("12", ""),
        "REQ/S": ("7.2", ""),
        "MISSED%": ("6.0", "red"),
        "AGE": ("2s", ""),
        "REASON": ("Demand", ""),
        "LIMITED BY": ("maxReplicas", ""),
        "CONDITIONS": ("StuckPending, 1 silent", "yellow"),
    }


def test_what_is_unknown_is_a_dash_and_nothing_is_coloured() -> None:
    shown = cells(service())
    assert [shown[name].plain for name in ("DESIRED", "KV%", "QUEUE", "REQ/S", "MISSED%", "AGE")] == ["–"] * 6
    assert {str(cell.style) for name, cell in shown.items() if name != "CONDITIONS"} == {""}


def test_of_a_service_that_is_not_ready_the_reason_is_why() -> None:
    assert cells(service(phase="Failed", **BUSY))["REASON"].plain == "ReplicasAnswer"
    assert str(cells(service(phase="Failed"))["PHASE"].style) == "red"


@pytest.mark.parametrize("status", [{}, None, {"phase": "Unheard"}, {"readyReplicas": "many"}])
def test_a_status_that_cannot_be_read_is_unknown(status: Any) -> None:
    assert cells({**service(), "status": status})["PHASE"].plain == "–"


def test_trouble_comes_first() -> None:
    rows = view_services(
        [
            service("calm"),
            service("short", ready=1),
            service("failed", phase="Failed"),
            service("told", mode="Active", conditions=["Flapping"]),
            service("loading", phase="Loading"),
            service("also-calm"),
        ]
    )
    assert [row.name for row in rows] == ["failed", "loading", "short", "told", "also-calm", "calm"]


def test_brackets_are_no_markup() -> None:
    console = Console(width=200, record=True)
    with console.capture() as captured:
        console.print(render_table([view_service(service(**{**BUSY, "reason": "[red]x"}))], ""))
    assert "[red]x" in captured.get()
