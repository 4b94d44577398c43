"""The wheels of an image, downloaded once: builds then run without a network, and again with the same files."""

import platform
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from tests.images.cache import MONTH_S, cache_folder, content_hash, forget_older
from tests.images.recipe import PYTHON_VERSION, ROOT, Image

_ABI = f"cp{PYTHON_VERSION.replace('.', '')}"


def requirements(extra: str) -> list[str]:
    """Return what pyproject.toml names for an image that installs one extra."""
    project = _project()
    return [*project["dependencies"], *project["optional-dependencies"][extra]]


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def wheelhouse(image: Image, *, cuda: bool = False) -> Path:
    """Return a folder with every wheel of an image, downloaded now if need be; its name holds the hash of the wishes.

    Torch comes as its CPU build, which pip must be able to find (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL), or with CUDA
    as PyPI's own build.
    """
    constraints = (ROOT / "constraints.txt").read_text()
    wanted = requirements(image.extra)
    if image.extra == "engine" and not cuda:
        version = next(line for line in constraints.splitlines() if line.startswith("torch=="))
        wanted.append(f"{version}+cpu")
    alone = list(image.wheels_without_dependencies)
    key = content_hash(_project()["version"], constraints, *wanted, "alone", *alone, PYTHON_VERSION, platform.machine())
    folder = cache_folder() / f"wheels-{image.extra}{'-cuda' if cuda else ''}-{key}"
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        _download(partial, wanted)
        if alone:
            _download(partial, [*alone, "--no-deps"])
        partial.rename(folder)
        forget_older(folder, after_s=MONTH_S)
    return folder


def _download(folder: Path, wanted: list[str]) -> None:
    machine = platform.machine()
    # pip takes a platform by its name alone, without the older ones that it includes; NVIDIA's wheels are of 2.27.
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(28, 4, -1)]
    platforms += [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}"]
    tags = [f"--platform={name}" for name in platforms] + [f"--abi={abi}" for abi in (_ABI, "abi3", "none")]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest", str(folder)]
    command += ["--implementation=cp", f"--python-version={PYTHON_VERSION}", *tags]
    command += ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*command, *wanted], check=True)
