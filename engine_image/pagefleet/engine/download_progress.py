"""How far a download is: the growth of its folder, which holds whatever the hub client uses for the transfer."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

INTERVAL_S = 0.5


@contextmanager
def report_growth(folder: Path, expected_bytes: int, on_progress: Callable[[float | None], None]) -> Iterator[None]:
    """Report the share of `expected_bytes` by which the folder has grown, from 0 to 1, twice a second."""
    began_bytes = folder_bytes(folder)
    is_done = threading.Event()

    def watch() -> None:
        reported = -1.0
        while not is_done.wait(INTERVAL_S):
            share = min(1.0, (folder_bytes(folder) - began_bytes) / expected_bytes)
            if round(share, 2) != reported:  # a percent: finer news would only fill the socket
                reported = round(share, 2)
                on_progress(max(0.0, share))

    on_progress(0.0)
    watcher = threading.Thread(target=watch, name="download-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_done.set()
        watcher.join()


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder, links not followed; 0 when it does not exist."""
    total = 0
    for path in folder.rglob("*"):
        try:
            if path.is_file() and not path.is_symlink():
                total += path.stat().st_size
        except OSError:  # renamed meanwhile
            continue
    return total
