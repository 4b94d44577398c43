"""The boards: what they read is exported, and every panel says what it is."""

import re
from itertools import combinations

import pytest

from pagefleet.cli.dashboards.board import COLUMNS, Panel, PanelKind, Place, lay_out
from pagefleet.cli.dashboards.boards import BOARDS
from pagefleet.cli.main import run
from tests.monitoring.promql import ROOT, SERIES, panel_expressions, series_read

PANELS = [(board.name, panel) for board in BOARDS.values() for panel in board.panels]
PANEL_NAMES = [f"{board}: {panel.title}" for board, panel in PANELS]


@pytest.mark.parametrize(("where", "expression"), tuple(panel_expressions()), ids=lambda value: value[:60])
def test_reads_metrics_of_the_tables_and_their_labels(where: str, expression: str) -> None:
    names = series_read(expression)
    assert names, "every query reads something of ours"
    assert names <= SERIES.keys()
    added = {"namespace", "service", "pod"}  # by the scrape
    for name, filters in re.findall(r"(pagefleet_\w+)\{([^}]*)\}", expression):
        labels = set(re.findall(r"(\w+)(?:=~|=|!=|!~)", filters))
        assert labels - added <= {*SERIES[name].labels}, name


def test_variables_are_those_of_the_board() -> None:
    builtin = {"__rate_interval"}
    for board in BOARDS.values():
        known = {variable.name for variable in board.variables} | builtin
        for panel in board.panels:
            for query in panel.queries:
                assert set(re.findall(r"\$(\w+)", query.expression)) <= known, query


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=PANEL_NAMES)
def test_a_panel_explains_itself(board: str, panel: Panel) -> None:
    assert panel.description.endswith(".")
    assert len({query.legend for query in panel.queries}) == len(panel.queries)
    assert [each.value for each in panel.thresholds] == sorted(each.value for each in panel.thresholds)
    assert not panel.is_stacked or panel.kind is PanelKind.LINES


@pytest.mark.parametrize("name", BOARDS)
def test_panels_do_not_overlap(name: str) -> None:
    places = [place for _, place in lay_out(BOARDS[name])]

    def overlap(one: Place, other: Place) -> bool:
        return (
            one.x < other.x + other.width
            and other.x < one.x + one.width
            and one.y < other.y + other.height
            and other.y < one.y + one.height
        )

    assert not [pair for pair in combinations(places, 2) if overlap(*pair)]
    assert all(place.x + place.width <= COLUMNS for place in places)


@pytest.mark.parametrize("name", BOARDS)
def test_the_chart_holds_the_board(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dashboard", "json", name]) == 0
    file = ROOT / "helm" / "pagefleet" / "files" / "dashboards" / f"pagefleet-{name}.json"
    assert file.read_text() == capsys.readouterr().out, "run make docs"


def test_an_unknown_board_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dashboard", "json", "flet"]) == 2
    assert capsys.readouterr().err == "There is no board 'flet': write one of fleet, service, autoscaler.\n"
