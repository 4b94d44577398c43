"""The control groups of nodes, on version 1 (a tree for each controller) and version 2 (one tree)."""

import time
from pathlib import Path

from tests.cluster.layout import NodeLayout
from tests.cluster.paths import ClusterError

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("cpu", "cpuset", "hugetlb", "io", "memory", "pids")
_COPIED = ("cpuset.cpus", "cpuset.mems")  # empty in a new group of version 1, where no process may join then
REMOVE_TIMEOUT_S = 5.0


def create(node: NodeLayout) -> None:
    """Make a node's group wherever groups are; the kubelet makes its own below."""
    if _is_version_2():
        _delegate(_ROOT)
        group = _group(_ROOT, node)
        group.mkdir(exist_ok=True)
        _delegate(group)
        return
    for tree in _trees():
        group = _group(tree, node)
        group.mkdir(exist_ok=True)
        for name in _COPIED:
            if (tree / name).exists():
                (group / name).write_text((tree / name).read_text())


def remove(node: NodeLayout) -> None:
    """Remove a node's groups; its processes must be gone.

    Raises:
        ClusterError: a group did not go.
    """
    deadline = time.monotonic() + REMOVE_TIMEOUT_S
    groups = [_group(tree, node) for tree in ([_ROOT] if _is_version_2() else _trees())]
    while left := [group for group in groups if not _remove_tree(group)]:
        if time.monotonic() > deadline:
            raise ClusterError(f"the control group {left[0]} does not go: see {left[0]}/cgroup.procs")
        time.sleep(0.02)  # the kernel lets go of a group a moment after its last process


def _is_version_2() -> bool:
    return (_ROOT / "cgroup.controllers").exists()


def _trees() -> list[Path]:
    return [tree for tree in _ROOT.iterdir() if (tree / "cgroup.procs").exists() and not tree.is_symlink()]


def _group(tree: Path, node: NodeLayout) -> Path:
    return tree / node.cgroup.lstrip("/")


def _delegate(group: Path) -> None:
    """Let groups below this one have the controllers that the kubelet needs."""
    offered = (group / "cgroup.controllers").read_text().split()
    wanted = " ".join(f"+{name}" for name in _CONTROLLERS if name in offered)
    (group / "cgroup.subtree_control").write_text(wanted)


def _remove_tree(group: Path) -> bool:
    """Remove a group and those below, and tell whether all of it went."""
    if not group.is_dir():
        return True
    for child in group.iterdir():
        if child.is_dir():
            _remove_tree(child)
    try:
        group.rmdir()
    except OSError:
        return False
    return True
