"""`pagefleet runbook` as people type it."""

import pytest

from pagefleet.cli.main import run
from pagefleet.cli.runbook_command import read_runbooks


def test_the_list_has_a_line_for_each_alert(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runbook"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*read_runbooks()]
    assert all(len(line.split()) > 4 for line in lines)


@pytest.mark.parametrize("name", ["PagefleetStuckPending", "pagefleetstuckpending"])
def test_a_page_is_printed_whole(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runbook", name]) == 0
    assert capsys.readouterr().out == read_runbooks()["PagefleetStuckPending"]


@pytest.mark.parametrize(
    ("name", "advice"),
    [("PagefleetStuckPendin", "did you mean PagefleetStuckPending?"), ("x", "write for example PagefleetEngine")],
)
def test_an_unknown_alert_says_which_there_are(name: str, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runbook", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"There is no alert '{name}': {advice}")
