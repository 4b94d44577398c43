"""A board as Grafana's JSON, for version 10 and newer."""

import json
from collections.abc import Sequence
from typing import Any

from pagefleet.cli.dashboards.board import (
    Board,
    Panel,
    PanelKind,
    Place,
    Query,
    Row,
    Threshold,
    Unit,
    Variable,
    lay_out,
)

Json = dict[str, Any]

SCHEMA_VERSION = 39
"""Grafana 10.4's; newer ones migrate it when they load it."""
TAG = "pagefleet"
DATA_SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}


def dashboard_json(board: Board) -> str:
    """Return the file of a board."""
    return json.dumps(_dashboard(board), indent=1, ensure_ascii=False) + "\n"


def _dashboard(board: Board) -> Json:
    return {
        "uid": f"pagefleet-{board.name}",
        "title": board.title,
        "description": board.description,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one crosshair for all panels
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "links": [{"type": "dashboards", "title": "pagefleet", "tags": [TAG], "keepTime": True, "includeVars": True}],
        "annotations": {"list": []},
        "templating": {"list": [_data_source_variable(), *(_variable(each) for each in board.variables)]},
        "panels": [
            {"id": number, "gridPos": _grid(place), **(_row(part) if isinstance(part, Row) else _panel(part))}
            for number, (part, place) in enumerate(lay_out(board), 1)
        ],
    }


def _data_source_variable() -> Json:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}


def _variable(variable: Variable) -> Json:
    query = f"label_values({variable.of}, {variable.from_label or variable.name})"
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": DATA_SOURCE,
        "query": {"query": query, "refId": variable.name},
        "definition": query,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,  # when the time range changes, since services come and go
        "sort": 1,
    }


def _grid(place: Place) -> Json:
    return {"x": place.x, "y": place.y, "w": place.width, "h": place.height}


def _row(row: Row) -> Json:
    return {"type": "row", "title": row.title, "collapsed": False, "panels": []}


def _panel(panel: Panel) -> Json:
    shown: Json = {
        "type": panel.kind.value,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATA_SOURCE,
        "targets": [_target(panel, number, query) for number, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _OPTIONS[panel.kind],
    }
    if panel.kind is PanelKind.TABLE:
        shown["transformations"] = _one_table(panel.queries)
    return shown


def _target(panel: Panel, number: int, query: Query) -> Json:
    is_instant = panel.kind in (PanelKind.TABLE, PanelKind.BARS)
    return {
        "refId": _letter(number),
        "datasource": DATA_SOURCE,
        "editorMode": "code",
        "expr": query.expression,
        "legendFormat": query.legend,
        "instant": is_instant,
        "range": not is_instant,
        "format": "table" if panel.kind is PanelKind.TABLE else "time_series",
    }


def _letter(number: int) -> str:
    return chr(ord("A") + number)


def _defaults(panel: Panel) -> Json:
    defaults: Json = {
        "unit": panel.unit.value,
        "min": 0,
        "thresholds": {"mode": "absolute", "steps": _steps(panel.thresholds)},
        "color": {"mode": "palette-classic" if panel.kind is PanelKind.LINES else "thresholds"},
    }
    if panel.is_share:
        defaults["max"] = 1
    if panel.may_be_negative:
        del defaults["min"]
    if panel.kind is PanelKind.LINES:
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if panel.is_stacked else 5,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.is_stacked else "none"},
            "thresholdsStyle": {"mode": "dashed" if panel.thresholds else "off"},
        }
    if panel.kind is PanelKind.STATES:
        defaults["thresholds"]["steps"] = _steps((Threshold(1, "orange"),))
    return defaults


def _steps(thresholds: Sequence[Threshold]) -> list[Json]:
    return [{"color": "green", "value": None}, *({"color": each.colour, "value": each.value} for each in thresholds)]


def _overrides(panel: Panel) -> list[Json]:
    return [
        {
            "matcher": {"id": "byName", "options": query.legend},
            "properties": [{"id": "unit", "value": query.unit.value}],
        }
        for query in panel.queries
        if panel.kind is PanelKind.TABLE and query.unit is not Unit.NONE
    ]


def _one_table(queries: Sequence[Query]) -> list[Json]:
    """Join the tables of all queries by their labels, and name each value's column after its query."""
    names = {f"Value #{_letter(number)}": query.legend for number, query in enumerate(queries)}
    return [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": names}},
    ]


_OPTIONS: dict[PanelKind, Json] = {
    PanelKind.LINES: {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    PanelKind.NUMBER: {
        "reduceOptions": {"calcs": ["lastNotNull"], "values": False},
        "colorMode": "value",
        "graphMode": "area",
        "textMode": "auto",
    },
    PanelKind.BARS: {
        "reduceOptions": {"calcs": ["lastNotNull"], "values": False},
        "orientation": "horizontal",
        "displayMode": "basic",
    },
    PanelKind.TABLE: {"showHeader": True, "cellHeight": "sm"},
    PanelKind.STATES: {
        "showValue": "never",
        "mergeValues": True,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
    },
}
