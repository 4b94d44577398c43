from pathlib import Path

import pytest

from pagefleet.api.crd import CRD_FILE, crd_yaml
from pagefleet.cli.main import run


def test_print(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["crds"]) == 0
    assert capsys.readouterr().out == crd_yaml()


def test_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "crd.yaml"
    path.write_text(crd_yaml())
    assert run(["crds", "--check", "--file", str(path)]) == 0
    path.write_text(crd_yaml().replace("replicas", "copies"))
    assert run(["crds", "--check", "--file", str(path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"{path} is stale: run pagefleet crds > {path}.\n"


def test_check_outside_of_the_repository(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["crds", "--check"]) == 2
    assert capsys.readouterr().err == (
        f"{CRD_FILE} can't be read (No such file or directory); run this in the repository, or name a --file.\n"
    )


def test_a_file_without_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["crds", "--file", "x"]) == 2
    assert "pagefleet crds > FILE" in capsys.readouterr().err
