"""The cache folder of image builds: files named by the hash of what they are made of, one builder at a time."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

HASH_DIGITS = 16
HOUR_S = 3600.0
"""Time for which another checkout may still want the archive that it has just built."""
MONTH_S = 30 * 24 * HOUR_S


def cache_folder() -> Path:
    """Return the folder of everything built here, `$PAGEFLEET_CACHE/images` or `~/.cache/pagefleet/images`."""
    base = Path(os.environ.get("PAGEFLEET_CACHE") or Path.home() / ".cache" / "pagefleet")
    return base / "images"


def content_hash(*parts: str | bytes) -> str:
    """Return 16 hex digits that change when any part does."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:HASH_DIGITS]


def tree_hash(roots: list[Path]) -> str:
    """Return the hash of some files, and of the names and contents of all source files below some folders."""
    parts: list[str | bytes] = []
    for root in roots:
        for path in sorted([root, *root.rglob("*")]):
            if path.is_file() and "__pycache__" not in path.parts:
                parts += [str(path.relative_to(root)), path.read_bytes()]
    return content_hash(*parts)


@contextlib.contextmanager
def lock() -> Iterator[None]:
    """Hold the cache alone: builders share one layer store."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def forget_older(keep: Path, *, after_s: float) -> None:
    """Remove what differs from `keep` in the hash of its name alone and is older than a time: earlier builds of it."""
    prefix, _, rest = keep.name.rpartition("-")
    for path in keep.parent.glob(f"{prefix}-{'?' * HASH_DIGITS}{rest[HASH_DIGITS:]}"):
        if path != keep and time.time() - path.stat().st_mtime > after_s:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
