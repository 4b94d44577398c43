"""The thin layer: what is in it, that equal code gives equal bytes, and that it names its parent's layers."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.images.recipe import IMAGES, IS_SAME_PYTHON
from tests.images.thin_layer import code_files, pack, write_thin_archive

UNCHECKED_HASH = 0b01
"""In bytes 4 to 7 of a compiled file: made by hash, and never compared with the source (PEP 552)."""


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """Return a docker-archive with one layer."""
    layer = tar_of({"etc/hostname": b"node\n"})
    config = {"config": {"User": "65532:65532"}, "rootfs": {"type": "layers", "diff_ids": [digest(layer)]}}
    manifest = [{"Config": "config.json", "RepoTags": ["localhost/parent:1"], "Layers": ["layer.tar"]}]
    archive = tmp_path / "parent.tar"
    archive.write_bytes(
        tar_of(
            {
                "layer.tar": layer,
                "config.json": json.dumps(config).encode(),
                "manifest.json": json.dumps(manifest).encode(),
            }
        )
    )
    return archive


def test_equal_files_give_equal_bytes() -> None:
    files = {"opt/app/b.py": b"b", "opt/app/a.py": b"a"}
    assert pack(files) == pack(dict(reversed(files.items())))


def test_folders_come_before_what_is_in_them() -> None:
    with tarfile.open(fileobj=io.BytesIO(pack({"opt/app/pagefleet/api/a.py": b""}))) as tar:
        members = tar.getmembers()
    assert [member.name for member in members if member.isdir()] == [
        "opt",
        "opt/app",
        "opt/app/pagefleet",
        "opt/app/pagefleet/api",
    ]
    assert [(member.uid, member.mode) for member in members if member.isfile()] == [(0, 0o644)]


def test_the_archive_adds_one_layer_to_its_parent(parent: Path, tmp_path: Path) -> None:
    layer = pack({"opt/app/a.py": b"a"})
    archive = tmp_path / "thin.tar"
    named = write_thin_archive(parent, layer, "localhost/thin:2", archive)
    with tarfile.open(archive) as tar:
        blobs = {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}  # type: ignore[union-attr]
    (described,) = json.loads(blobs["index.json"])["manifests"]
    assert described["digest"] == named
    assert described["annotations"]["io.containerd.image.name"] == "localhost/thin:2"

    def blob(name: str) -> bytes:
        content = blobs[f"blobs/sha256/{name.removeprefix('sha256:')}"]
        assert digest(content) == name
        return content

    manifest = json.loads(blob(named))
    config = json.loads(blob(manifest["config"]["digest"]))
    assert config["config"]["User"] == "65532:65532"
    assert [each["digest"] for each in manifest["layers"]] == config["rootfs"]["diff_ids"]
    assert config["rootfs"]["diff_ids"][1] == digest(layer)
    assert blob(digest(layer)) == layer
    assert len(blobs) == 5  # the parent's layer is not in it


@pytest.mark.parametrize("name", IMAGES)
def test_the_code_of_an_image_is_its_parts_alone(name: str) -> None:
    files = code_files(IMAGES[name])
    parts = {path.split("/")[3] for path in files}
    other = {"operator": "engine", "engine": "operator", "demo": "operator"}[name]
    assert {"api", "cli"} < parts
    assert other not in parts
    assert "opt/app/pagefleet/cli/main.py" in files


def test_code_is_compiled_for_good() -> None:
    """A compiled file that is compared with its source by time is made anew at every start of a read-only container."""
    files = code_files(IMAGES["operator"])
    sources = [name for name in files if name.endswith(".py")]
    compiled = {name: content for name, content in files.items() if name.endswith(".pyc")}
    assert len(compiled) == (len(sources) if IS_SAME_PYTHON else 0)
    assert not compiled or {int.from_bytes(content[4:8], "little") for content in compiled.values()} == {UNCHECKED_HASH}
