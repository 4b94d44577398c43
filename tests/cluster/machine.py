"""What nodes change on the machine itself, noted before and put back with the last cluster.

The kubelet writes kernel settings that belong to no namespace, and the folders that nodes mount over must exist.
"""

import contextlib
import json
from pathlib import Path

from tests.cluster.paths import STATE

MOUNT_POINTS = (
    "/etc/cni/net.d",
    "/run/containerd",
    "/run/netns",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
)
_SETTINGS = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
)
_NOTE = STATE / "machine.json"
_KERNEL = Path("/proc/sys")


def prepare() -> None:
    """Note how the machine is, unless a cluster that runs has done so, and make the folders."""
    missing = [str(folder) for point in MOUNT_POINTS for folder in _missing(Path(point))]
    if not _NOTE.exists():
        settings = {name: (_KERNEL / name).read_text().strip() for name in _SETTINGS if (_KERNEL / name).exists()}
        unfinished = _NOTE.with_suffix(".new")
        unfinished.write_text(json.dumps({"settings": settings, "folders": missing}))
        unfinished.rename(_NOTE)
    for point in MOUNT_POINTS:
        Path(point).mkdir(parents=True, exist_ok=True)


def restore() -> None:
    """Put the machine back as it was noted; no node may run any more."""
    if not _NOTE.exists():
        return
    note = json.loads(_NOTE.read_text())
    for name, value in note["settings"].items():
        with contextlib.suppress(OSError):  # not ours to write in a container
            if (_KERNEL / name).read_text().strip() != value:
                (_KERNEL / name).write_text(value)
    for folder in sorted(note["folders"], key=len, reverse=True):
        with contextlib.suppress(OSError):  # somebody else has use for it
            Path(folder).rmdir()
    _NOTE.unlink()


def _missing(folder: Path) -> list[Path]:
    return [path for path in (folder, *folder.parents) if not path.exists()]
