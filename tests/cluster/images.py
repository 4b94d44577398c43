"""Write OCI image archives from folders and files, with the standard library alone."""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TYPE = "application/vnd.oci.image."
_SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NOT_IN_IMAGES = {"proc", "sys", "dev"}
_CHUNK_BYTES = 2**20


def write_image(
    archive: Path,
    name: str,
    *,
    root: Path | None = None,
    files: Mapping[str, Path] | None = None,
    environment: tuple[str, ...] = (),
    entrypoint: tuple[str, ...] = (),
    user: str = "",
) -> Path:
    """Write an archive that `ctr images import` takes, and return its path.

    `root` (a whole file system) and `files` (path in the image → file or folder) become a layer each. The same input
    gives the same bytes.
    """
    layers = []
    try:
        if root:
            entries = sorted(entry for entry in os.listdir(root) if entry not in _NOT_IN_IMAGES)
            layers.append(_write_layer(archive, 0, {entry: root / entry for entry in entries}))
        if files:
            layers.append(_write_layer(archive, 1, {path.lstrip("/"): source for path, source in files.items()}))
        _write_archive(archive, name, layers, environment, entrypoint, user)
    finally:
        for layer, _ in layers:
            layer.unlink()
    return archive


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = 0
    member.uname = member.gname = ""
    return member


def _write_layer(archive: Path, number: int, members: Mapping[str, Path]) -> tuple[Path, str]:
    path = archive.with_name(f"{archive.name}.layer{number}")
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as layer:
        for name, source in members.items():
            layer.add(source, name, filter=_anonymous)
    digest = hashlib.sha256()
    with path.open("rb") as data:
        while chunk := data.read(_CHUNK_BYTES):
            digest.update(chunk)
    return path, digest.hexdigest()


def _write_archive(
    archive: Path,
    name: str,
    layers: list[tuple[Path, str]],
    environment: tuple[str, ...],
    entrypoint: tuple[str, ...],
    user: str,
) -> None:
    blobs: dict[str, bytes] = {}

    def blob(kind: str, value: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(value, sort_keys=True).encode()
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": _TYPE + kind, "digest": f"sha256:{digest}", "size": len(data)}

    config = blob(
        "config.v1+json",
        {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
            "os": "linux",
            "config": {"Env": [_SEARCH_PATH, *environment], "Entrypoint": list(entrypoint), "User": user},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for _, digest in layers]},
        },
    )
    described = [
        {"mediaType": _TYPE + "layer.v1.tar", "digest": f"sha256:{digest}", "size": path.stat().st_size}
        for path, digest in layers
    ]
    manifest = blob("manifest.v1+json", {"schemaVersion": 2, "config": config, "layers": described})
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rsplit(":", 1)[-1]}
    index = {"schemaVersion": 2, "manifests": [{**manifest, "annotations": names}]}
    with tarfile.open(archive, "w") as out:
        _put(out, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _put(out, "index.json", json.dumps(index).encode())
        for digest, data in blobs.items():
            _put(out, f"blobs/sha256/{digest}", data)
        for path, digest in layers:
            out.add(path, f"blobs/sha256/{digest}", filter=_anonymous)


def _put(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))
