"""Guards of the house: what no linter checks. The import contracts are in pyproject.toml, `make lint` runs them."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support import file_map
from tests.support.file_map import PACKAGE_FOLDERS

ROOT = Path(__file__).parents[1]
MOST_LINES = 400


def tracked_files() -> list[str]:
    """Return what git tracks or would; without git, what is there."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        ignored = {".venv", ".git", "__pycache__"}
        listed = [
            str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file() and not ignored & {*path.parts}
        ]
    return sorted(name for name in listed if (ROOT / name).is_file())


FILES = tracked_files()
MODULES = [name for name in FILES if name.endswith(".py")]


def test_modules_stay_small() -> None:
    lines = {name: len((ROOT / name).read_text().splitlines()) for name in MODULES}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_namespaces_stay_open() -> None:
    """An `__init__.py` in `operator/` shadows the standard library's `operator` and breaks pip itself."""
    forbidden = re.compile(
        r"^(operator|crds|engine_image|autoscaler)/(pagefleet/)?__init__\.py$|^tests/.*__init__\.py$"
    )
    assert [name for name in FILES if forbidden.match(name)] == []
    assert not (ROOT / "operator.py").exists()


def test_every_package_is_typed() -> None:
    packages = {"/".join(name.split("/")[:3]) for name in MODULES if name.split("/")[0] in PACKAGE_FOLDERS}
    assert [package for package in sorted(packages) if f"{package}/py.typed" not in FILES] == []


def test_every_module_says_what_it_is() -> None:
    silent = [
        name
        for name in MODULES
        if name.split("/")[0] in PACKAGE_FOLDERS and not (ROOT / name).read_text().startswith('"""')
    ]
    assert silent == []


def test_readme_maps_every_module() -> None:
    """The map is made of the modules' first sentences: run `make map` after adding or renaming one."""
    assert file_map.current((ROOT / "README.md").read_text()) == file_map.render()


@pytest.mark.parametrize(
    "name", ["README.md", ".github/CONTRIBUTING.md", ".github/SECURITY.md", ".github/CHANGELOG.md"]
)
def test_links_between_documents_lead_somewhere(name: str) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", (ROOT / name).read_text())
    missing = [target for target in targets if not ((ROOT / name).parent / target).exists()]
    assert missing == []
