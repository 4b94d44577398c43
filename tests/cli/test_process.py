"""`pagefleet.cli.play.process`: what a log says of an end."""

from pathlib import Path

import pytest

from pagefleet.cli.play.process import LONGEST_REASON, last_line


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", ""),
        ("first\nsecond\n\n", "second"),
        ("2026-11-29 20:20:20,000 ERROR the core ended (signal 9)\n", "the core ended (signal 9)"),
        ("2026-11-29 is a date\n", "2026-11-29 is a date"),
        ("x" * 2000, "x" * LONGEST_REASON),
        ("caf\u00e9 \ufffd", "caf\u00e9 \ufffd"),
    ],
)
def test_last_line(tmp_path: Path, log: str, line: str) -> None:
    path = tmp_path / "engine.log"
    path.write_text(log)
    assert last_line(path) == line


def test_last_line_of_this_start_only(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.write_text("before\n")
    assert last_line(path, start_bytes=path.stat().st_size) == ""
    assert last_line(tmp_path / "none") == ""
