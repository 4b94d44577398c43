"""What this process is told of its memory, also where the kernel tells less."""

from pathlib import Path

import pytest

from pagefleet.engine import machine


def test_files_count_as_a_constant_where_the_kernel_tells_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status = tmp_path / "status"
    monkeypatch.setattr(machine, "STATUS_FILE", status)
    monkeypatch.setattr(machine, "memory_used_bytes", lambda: 500 * 2**20)
    status.write_text("Name:\tpython\nVmHWM:\t  700000 kB\nRssFile:\t  204800 kB\n")
    assert machine.memory_held_bytes() == 300 * 2**20 + machine.LIBRARY_BYTES
    assert machine.PeakMemory().bytes() == 700_000 * 1024


@pytest.mark.parametrize("text", [None, "Name:\tpython\nVmRSS:\t  10 kB\n"], ids=["no file", "fewer lines"])
def test_a_kernel_that_tells_less_stops_nothing(
    text: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, reset = tmp_path / "status", tmp_path / "clear_refs"
    monkeypatch.setattr(machine, "STATUS_FILE", status)
    monkeypatch.setattr(machine, "PEAK_RESET_FILE", reset)
    if text is not None:
        status.write_text(text)
    assert machine.mapped_file_bytes() is None
    assert machine.memory_held_bytes() == pytest.approx(machine.memory_used_bytes(), rel=0.1)
    assert machine.PeakMemory().reset() is False
