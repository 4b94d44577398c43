"""Compile the C kernels for an instruction set, once per source, level and compiler.

Imports nothing but the standard library, so that an image build can run it by itself: `python build.py FOLDER`
compiles every level into FOLDER, where no compiler is needed any more.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent
PREBUILT_VARIABLE = "PAGEFLEET_KERNELS"
"""Names the folder in which an image brings the libraries of all levels."""

LEVELS = {
    "avx512-bf16": ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni"),
    "avx512": ("-march=x86-64-v4",),
    "avx2": ("-march=x86-64-v3",),
}
"""Instruction sets, the best first. Never `-march=native`: an image runs on other CPUs than it was built on."""

FLAGS = (
    *("-std=gnu11", "-O3", "-fopenmp", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-Werror"),
    # Not -ffast-math: it lets the compiler drop the rounding by which the exponential splits its argument.
    *("-fno-math-errno", "-fno-trapping-math"),
)


class BuildFailed(Exception):
    """Say that the compiler refused the sources, with its own words."""


def find_compiler() -> str | None:
    """Return the path of a C compiler, or None."""
    return shutil.which(os.environ.get("CC") or "gcc") or shutil.which("cc")


@cache
def source_hash() -> str:
    """Return 16 hex digits that change with any source or flag."""
    digest = hashlib.sha256(repr((LEVELS, FLAGS)).encode())
    for path in sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def prebuilt_library(level: str) -> Path | None:
    """Return the library that an image brought for the level, if it was made from these sources."""
    folder = os.environ.get(PREBUILT_VARIABLE)
    path = Path(folder or os.devnull) / f"{level}-{source_hash()}.so"
    return path if path.is_file() else None


def build_library(level: str, compiler: str) -> Path:
    """Return the level's library from the cache folder, compiled now if it is not there; raises BuildFailed."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    key = hashlib.sha256(f"{compiler}\0{version}".encode()).hexdigest()[:8]
    path = _cache_folder() / f"{level}-{source_hash()}-{key}.so"
    if not path.is_file():
        compile_library(level, compiler, path)
    return path


def compile_library(level: str, compiler: str, path: Path) -> None:
    """Compile into `path`, which appears complete or not at all; raises BuildFailed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            command = [compiler, *FLAGS, *LEVELS[level], "-o", str(made), *map(str, sorted(SOURCES.glob("*.c")))]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                raise BuildFailed(f"{compiler} refuses the CPU kernels for {level}: {result.stderr[-2000:].strip()}")
            made.replace(path)
    except OSError as error:
        raise BuildFailed(f"the CPU kernels cannot be built in {path.parent}: {error}") from error


def _cache_folder() -> Path:
    base = os.environ.get("PAGEFLEET_CACHE")
    return (Path(base) if base else Path.home() / ".cache" / "pagefleet") / "kernels"


def main(folder: Path) -> None:
    """Compile all levels into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    if platform.machine() not in ("x86_64", "AMD64"):
        sys.stderr.write(f"no CPU kernels are made on {platform.machine()}: the engine computes with torch there\n")
        return
    compiler = find_compiler()
    if compiler is None:
        raise BuildFailed("no C compiler is on the path: install gcc, or set CC")
    for level in LEVELS:
        compile_library(level, compiler, folder / f"{level}-{source_hash()}.so")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
