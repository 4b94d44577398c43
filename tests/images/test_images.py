"""The images themselves, built by the Dockerfiles: who they run as, what is in them, how large they are."""

import json
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.images.build import BuiltImage, build_in_store, build_thin, why_not
from tests.images.buildah import buildah
from tests.images.recipe import APP_FOLDER, IMAGES, IS_SAME_PYTHON
from tests.images.thin_layer import code_files

LARGEST_MB = {"operator": 190, "engine": 790}


@dataclass(frozen=True)
class Unpacked:
    """An image, and its files as a container sees them."""

    name: str
    container: str
    root: Path

    def run(self, *command: str) -> str:
        """Run a command in the image as the user it names, and return its output."""
        return buildah("run", "--isolation=chroot", "--network=host", self.container, "--", *command)

    @property
    def megabytes(self) -> float:
        """Return what its files take, uncompressed."""
        used = subprocess.run(["du", "-s", "--bytes", str(self.root)], capture_output=True, text=True, check=True)
        return int(used.stdout.split()[0]) / 1e6


@pytest.fixture(scope="module", params=["operator", "engine"])
def image(request: pytest.FixtureRequest) -> Iterator[Unpacked]:
    if reason := why_not():
        pytest.skip(reason)
    container = buildah("from", "--pull-never", build_in_store(request.param))
    try:
        yield Unpacked(request.param, container, Path(buildah("mount", container)))
    finally:
        buildah("rm", container)


def test_runs_as_a_number_without_rights(image: Unpacked) -> None:
    config = json.loads(buildah("inspect", "--type=container", image.container))["OCIv1"]["config"]
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["pagefleet"]
    own = subprocess.run(
        ["find", str(image.root), "-xdev", "-uid", "65532"], capture_output=True, text=True, check=True
    )
    assert own.stdout == "", "nothing belongs to the user that runs it"


def test_the_command_works(image: Unpacked) -> None:
    assert image.run("pagefleet", "--version").startswith("pagefleet 0.")


def test_holds_what_it_runs_and_no_more(image: Unpacked) -> None:
    (packages,) = image.root.glob("opt/venv/lib/python3*/site-packages")
    present = {path.name for path in packages.iterdir()}
    assert not {"pip", "setuptools"} & present
    assert ("torch" in present) == (image.name == "engine")
    assert ("kopf" in present) == (image.name == "operator")


def test_code_equals_the_thin_layer(image: Unpacked) -> None:
    """So that the short way of tests never hides a broken Dockerfile."""
    folder = image.root / APP_FOLDER
    built = {
        str(path.relative_to(image.root)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }
    thin = code_files(IMAGES[image.name])
    if not IS_SAME_PYTHON:
        built = {name: content for name, content in built.items() if not name.endswith(".pyc")}
    assert built.keys() == thin.keys()
    assert [name for name in built if content(name, built[name]) != content(name, thin[name])] == []


def test_what_a_cluster_gets_is_what_the_dockerfile_gives(image: Unpacked) -> None:
    """The same layers below the code and the same settings; clusters get the demo, which adds a model to the engine."""
    built = json.loads(buildah("inspect", "--type=container", image.container))["OCIv1"]
    thin = configuration(build_thin({"engine": "demo"}.get(image.name, image.name)))
    below_the_code = built["rootfs"]["diff_ids"][:-1]
    assert below_the_code
    assert thin["rootfs"]["diff_ids"][: len(below_the_code)] == below_the_code
    assert thin["config"] == built["config"]


def configuration(image: BuiltImage) -> dict[str, Any]:
    """Return the configuration in the last archive of an image."""
    with tarfile.open(image.archives[-1]) as archive:
        read = {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}  # type: ignore[union-attr]
    (described,) = json.loads(read["index.json"])["manifests"]
    manifest = json.loads(read[blob_name(described)])
    found: dict[str, Any] = json.loads(read[blob_name(manifest["config"])])
    return found


def blob_name(descriptor: dict[str, str]) -> str:
    """Return where an archive keeps what a descriptor names."""
    return f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}"


def content(name: str, data: bytes) -> bytes:
    """Return what must be equal: of compiled files the header, which holds the source's hash (PEP 552).

    The rest differs between two patch releases of Python.
    """
    return data[:16] if name.endswith(".pyc") else data


def test_is_small(image: Unpacked, measured: Callable[[str], None]) -> None:
    measured(f"{image.name} image: {image.megabytes:.0f} MB uncompressed")
    assert image.megabytes < LARGEST_MB[image.name]


IMPORTS = {
    "operator": "import pagefleet.cli.main, pagefleet.operator, pagefleet.api.client, kopf",
    "engine": "import pagefleet.cli.main, pagefleet.engine.core_process, pagefleet.engine.server.lifecycle",
}

NOT_COMPILED = """
import importlib.util, os, sys
files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
sources = [file for file in files if file.startswith("/opt/") and file.endswith(".py")]
print(len(sources), *[file for file in sources if not os.path.exists(importlib.util.cache_from_source(file))])
"""


def test_a_start_finds_its_modules_compiled(image: Unpacked) -> None:
    """A read-only container would compile what is not, at every start: one to four seconds."""
    count, *missing = image.run("python", "-c", f"{IMPORTS[image.name]}\n{NOT_COMPILED}").split()
    assert int(count) > 100
    assert len(missing) < 0.02 * int(count), missing
