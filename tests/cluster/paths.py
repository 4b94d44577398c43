"""Where the test cluster keeps its programs and its state. Standard library only: the build runs before any install."""

import os
from pathlib import Path

HERE = Path(__file__).parent
GO_SOURCES = HERE / "go"
NODE_INIT = HERE / "node_init.sh"

CACHE = Path(os.environ.get("PAGEFLEET_CACHE", Path.home() / ".cache" / "pagefleet")) / "cluster"
"""Built programs, one folder for each content of the sources, and Go's own build cache."""

_SHARED_MEMORY = Path("/dev/shm")
_ENOUGH_BYTES = 4 * 2**30


class ClusterError(Exception):
    """What went wrong, in one sentence, with what to do about it."""


def _state_folder() -> Path:
    """Choose memory where the machine has enough: images unpack faster there, and `down` takes 0.3 s instead of 7."""
    if chosen := os.environ.get("PAGEFLEET_CLUSTER_STATE"):
        return Path(chosen)
    try:
        size = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return CACHE / "state"
    # The size, not what is free, so that every run looks in the same place for what an earlier one left.
    roomy = size.f_blocks * size.f_frsize >= _ENOUGH_BYTES
    return _SHARED_MEMORY / f"pagefleet-{os.geteuid()}" if roomy else CACHE / "state"


STATE = _state_folder()
"""One folder for each cluster that is up, or was when its test run died."""
