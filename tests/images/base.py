"""The base image without a registry: a Debian root file system with Python 3.11, made by mmdebstrap of Debian packages.

Equal package versions give the same file, bit for bit. It stays until this recipe or the machine's package sources
change: remove it from the cache folder to take in updates.
"""

import os
from pathlib import Path

from tests.images.cache import cache_folder, content_hash
from tests.images.programs import run_quietly
from tests.images.recipe import EPOCH

SUITE = "bookworm"
PACKAGES = ("usr-is-merged", "python3", "python3-venv", "libstdc++6", "ca-certificates")
"""usr-is-merged keeps perl out; torch needs libstdc++6."""
MORE_PACKAGES = {
    "run": (),
    "build": ("binutils", "gcc", "libc6-dev"),  # strip, for the dependencies; a compiler, for the CPU kernels
    "cuda": ("gcc", "libc6-dev", "libpython3-dev"),  # what Triton compiles its launcher with
}
"""What each kind of base has besides: there is no apt in it that a Dockerfile could get it with."""

_OPTIONS = (
    "--quiet",
    "--mode=root",
    "--variant=essential",
    "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
    "--dpkgopt=force-unsafe-io",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/info/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    # What mmdebstrap copies from this machine would make the image unlike another machine's.
    '--customize-hook=cd "$1" && rm -rf var/lib/apt/lists/* var/cache/apt/* var/log/* etc/apt/sources.list* '
    "etc/resolv.conf etc/hostname",
)


def package_sources() -> Path:
    """Return the file with this machine's Debian package sources."""
    candidates = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
    return next((path for path in candidates if path.is_file()), candidates[-1])


def base_archive(kind: str = "run") -> Path:
    """Return the base's root file system as a tar file, made now if need be: half a minute."""
    packages = PACKAGES + MORE_PACKAGES[kind]
    sources = package_sources()
    key = content_hash(SUITE, *packages, *_OPTIONS, sources.read_bytes())
    archive = cache_folder() / f"base-{key}.tar"
    if not archive.exists():
        partial = archive.with_suffix(".partial.tar")
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}
        if os.access("/dev/shm", os.W_OK):  # memory, where dpkg's thousands of small writes take half the time
            environment["TMPDIR"] = "/dev/shm"
        apt_options = [f"--aptopt={path}" for path in sorted(Path("/etc/apt/apt.conf.d").glob("99*"))]
        command = ["mmdebstrap", *_OPTIONS, *apt_options, f"--include={','.join(packages)}"]
        run_quietly([*command, SUITE, str(partial), str(sources)], environment)
        partial.rename(archive)
    return archive
