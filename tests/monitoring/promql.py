"""Expressions of boards and alerts, and what they read."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from pagefleet.api.control_metrics import CONTROL_METRICS
from pagefleet.api.metrics import METRICS
from pagefleet.cli.dashboards.boards import BOARDS

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "helm" / "pagefleet" / "files" / "alerts.yaml"
RUNBOOKS = ROOT / "operator" / "pagefleet" / "cli" / "runbooks"

SERIES = {name: metric for metric in (*METRICS, *CONTROL_METRICS) for name in metric.series_names()}
"""Every series that Prometheus can have of us, under our own names."""


def panel_expressions() -> Iterator[tuple[str, str]]:
    """Yield each query of each panel: where it is, and its PromQL with Grafana's variables."""
    for board in BOARDS.values():
        for panel in board.panels:
            for query in panel.queries:
                yield f"{board.name}: {panel.title}: {query.legend}", query.expression


def alert_rules() -> list[dict[str, Any]]:
    """Return all alerts."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def series_read(expression: str) -> set[str]:
    """Return the series that an expression reads: its names with our prefix."""
    return set(re.findall(r"\bpagefleet_\w+", expression))
