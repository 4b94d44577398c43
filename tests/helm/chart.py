"""The chart and the helm program, for tests: render, lint, and read what was rendered."""

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.build import find_programs

CHART = Path(__file__).parents[2] / "helm" / "pagefleet"
VALUES = Path(__file__).parent / "values"
VALUE_SETS = sorted(path.stem for path in VALUES.glob("*.yaml"))

RELEASE = "fleet"
NAMESPACE = "pagefleet-system"
KUBE_VERSION = "--kube-version=1.30.0"
"""The oldest that the chart takes; helm itself knows of no cluster while it only renders."""

Object = dict[str, Any]


def helm_program() -> Path:
    """Return the helm program that the test cluster's build has made, or the machine's; skips where there is none."""
    programs = find_programs()
    if programs is not None and programs.has("helm"):
        return programs.path("helm")
    if found := shutil.which("helm"):
        return Path(found)
    pytest.skip("helm is not built: run make cluster")


def helm(*arguments: str, check: bool = True, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm; its output is text. Fails the test when helm fails and `check` is set."""
    command = [str(helm_program()), *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, input=stdin)
    if check:
        assert finished.returncode == 0, f"helm {' '.join(arguments)}: {finished.stderr}"
    return finished


def render(values: str, *arguments: str) -> str:
    """Return what the chart renders for a set of values, as helm prints it."""
    flags = (f"--namespace={NAMESPACE}", f"--values={VALUES / values}.yaml", KUBE_VERSION)
    return helm("template", RELEASE, str(CHART), *flags, *arguments).stdout


def objects(rendered: str) -> list[Object]:
    """Return the objects of a rendering."""
    return [document for document in yaml.safe_load_all(rendered) if document]


def of_kind(rendered: Iterable[Object], kind: str) -> list[Object]:
    """Return the objects of one kind."""
    return [document for document in rendered if document["kind"] == kind]


def without_files(rendered: str) -> str:
    """Return a rendering less what is a file of its own: CRD, dashboards and alerts, which other tests compare."""
    parts = rendered.split("---\n# Source: ")
    from_files = tuple(f"pagefleet/templates/{name}.yaml" for name in ("crd", "dashboards", "alerts"))
    kept = [part for part in parts if not part.startswith(from_files)]
    return "---\n# Source: ".join(kept)
