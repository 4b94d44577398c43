"""Start processes that outlive this one, and find and end them again.

Every process carries its cluster's folder in its environment, and hands it on to its children. So a cluster's processes
are found without a list of process ids, which a crash could leave incomplete and which the system gives out again.
"""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.paths import ClusterError

_MARK = "PAGEFLEET_TEST_CLUSTER"
_TITLE = "PAGEFLEET_TEST_CLUSTER_PROCESS"
END_TIMEOUT_S = 10.0


def marked(folder: Path, title: str) -> dict[str, str]:
    """Return the environment that makes a process one of the cluster in `folder`."""
    return {**os.environ, _MARK: str(folder), _TITLE: title}


def start(folder: Path, title: str, command: Sequence[str | Path]) -> int:
    """Start a process of the cluster in `folder` and return its id; its output goes to `logs/TITLE.log` there."""
    log = str(folder / "logs" / f"{title}.log")
    arguments = [str(argument) for argument in command]
    # Not subprocess: nobody waits for these, and a session of their own keeps the terminal's Ctrl-C away from them.
    return os.posix_spawn(
        arguments[0],
        arguments,
        marked(folder, title),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def find(folder: Path, title: str | None = None) -> list[int]:
    """Return the ids of a cluster's processes that live, or of those with a title and their children."""
    wanted = [f"{_MARK}={folder}".encode()]
    if title:
        wanted.append(f"{_TITLE}={title}".encode())
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended, or belongs to somebody else
            if {*wanted} <= {*(process / "environ").read_bytes().split(b"\0")}:
                found.append(int(process.name))
    return sorted(found)


def end(folder: Path, title: str | None = None) -> None:
    """Kill a cluster's processes, or those with a title, and wait until none is left.

    Raises:
        ClusterError: one did not go.
    """
    deadline = time.monotonic() + END_TIMEOUT_S
    while left := find(folder, title):
        for process_id in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise ClusterError(f"processes {left} of {folder} do not end: look at /proc/{left[0]}/stack")
        _reap(left)
        time.sleep(0.01)


def has_ended(process_id: int) -> bool:
    """Tell whether a process that this one started has ended."""
    try:
        return os.waitpid(process_id, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def start_time(process_id: int) -> int | None:
    """Return when a process started, in ticks since the machine did; nothing when it is gone.

    A process id with its start time names a process for good.
    """
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _reap(process_ids: list[int]) -> None:
    for process_id in process_ids:
        with contextlib.suppress(ChildProcessError):  # an earlier run's
            os.waitpid(process_id, os.WNOHANG)
