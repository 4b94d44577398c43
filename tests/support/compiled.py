"""What a compiler said of the same sources before: it says it again, and takes many CPU seconds each time.

Kept under `$PAGEFLEET_CACHE/compiled` or `~/.cache/pagefleet/compiled`, by the hash of all that the answer hangs on.
"""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pagefleet.engine.kernels.cpu import build
from tests.images.cache import MONTH_S, cache_folder, content_hash, forget_older


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    returncode: int
    stdout: str
    stderr: str


def compile_key(command: list[str]) -> str:
    """Return the hash of the C kernels, the compiler's version and what it is told; folders of sources do not count."""
    version = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=True).stdout
    told = [Path(each).name if each.endswith(".c") else each for each in command]
    return content_hash(version, build.source_hash(), *told)


def file_of(name: str, make: Callable[[Path], object]) -> Path:
    """Return a file of this name, made now if it is not there; `name` is `kind-hash.suffix`."""
    path = cache_folder().parent / "compiled" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{os.getpid()}.{name}")
        make(unfinished)
        unfinished.replace(path)
        forget_older(path, after_s=MONTH_S)
    return path


def answer_of(kind: str, key: str, ask: Callable[[], Said]) -> Said:
    """Return what `ask` answers, or answered before."""

    def write(path: Path) -> None:
        path.write_text(json.dumps(vars(ask())))

    return Said(**json.loads(file_of(f"{kind}-{key}.json", write).read_text()))
