"""A change of code without a build: the project's packages as one more layer over an image that a node already has.

A docker-archive's layers are uncompressed, so that the digests under which a node stores them are the diff ids of the
image's configuration. An archive of only the new layer, configuration and manifest is then enough, a few hundred KiB.
It lies over the image *without* code: what is deleted in the repository is not in it, and no compiled file of older
code can be taken for current.
"""

import hashlib
import io
import json
import py_compile
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.images.recipe import APP_FOLDER, EPOCH, IS_SAME_PYTHON, ROOT, Image

_MEDIA = "application/vnd.oci.image"


def code_files(image: Image) -> dict[str, bytes]:
    """Return the last layer of an image: path in the image to content, compiled files included.

    Compiled files are left out when this program runs on another Python than the image has.
    """
    files = {}
    for folder, place in image.code:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                inside = Path(APP_FOLDER, place, path.relative_to(ROOT / folder))
                files[str(inside)] = path.read_bytes()
    if IS_SAME_PYTHON:
        files |= dict(_compiled(files))
    return files


def _compiled(files: dict[str, bytes]) -> Iterable[tuple[str, bytes]]:
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    tag = sys.implementation.cache_tag
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "module.py"), Path(folder, "module.pyc")
        for name, content in files.items():
            path = Path(name)
            if path.suffix == ".py":
                source.write_bytes(content)
                py_compile.compile(
                    str(source), str(target), dfile=f"/{name}", doraise=True, invalidation_mode=mode, optimize=0
                )
                yield str(path.parent / "__pycache__" / f"{path.stem}.{tag}.pyc"), target.read_bytes()


def pack(files: dict[str, bytes]) -> bytes:
    """Return files as a layer: equal files give equal bytes."""
    buffer = io.BytesIO()
    folders: set[str] = set()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(files):
            for parent in reversed(Path(name).parents[:-1]):
                if str(parent) not in folders:
                    folders.add(str(parent))
                    tar.addfile(_header(str(parent), tarfile.DIRTYPE, 0o755))
            _add(tar, name, files[name])
    return buffer.getvalue()


def write_thin_archive(parent: Path, layer: bytes, reference: str, archive: Path) -> str:
    """Write an OCI archive with only what `layer` adds to the image in the docker-archive `parent`.

    Returns the manifest's digest. The archive can be imported where exactly that parent was imported before.
    """
    with tarfile.open(parent) as tar:
        entry = json.loads(_member(tar, "manifest.json"))[0]
        config = json.loads(_member(tar, entry["Config"]))
        sizes = [tar.getmember(name).size for name in entry["Layers"]]
    layers = [_descriptor("layer.v1.tar", d, s) for d, s in zip(config["rootfs"]["diff_ids"], sizes, strict=True)]
    layers.append(_descriptor("layer.v1.tar", _digest(layer), len(layer)))
    config["rootfs"]["diff_ids"].append(_digest(layer))
    created = datetime.fromtimestamp(EPOCH, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    config.setdefault("history", []).append({"created": created, "created_by": "the project's code"})
    config_data = _json(config)
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_MEDIA}.manifest.v1+json",
            "config": _descriptor("config.v1+json", _digest(config_data), len(config_data)),
            "layers": layers,
        }
    )
    annotations = {
        "io.containerd.image.name": reference,
        "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
    }
    described = _descriptor("manifest.v1+json", _digest(manifest), len(manifest))
    index = _json({"schemaVersion": 2, "manifests": [{**described, "annotations": annotations}]})
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(tar, "index.json", index)
        for blob in (layer, config_data, manifest):
            _add(tar, f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}", blob)
    return _digest(manifest)


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": f"{_MEDIA}.{kind}", "digest": digest, "size": size}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    assert file is not None, f"{name} is no file in {tar.name!r}"
    return file.read()


def _header(name: str, kind: bytes, mode: int, size: int = 0) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.type, header.mode, header.size, header.mtime = kind, mode, size, EPOCH
    return header


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    tar.addfile(_header(name, tarfile.REGTYPE, 0o644, len(content)), io.BytesIO(content))
