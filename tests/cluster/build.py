"""Build the cluster's programs once for each content of their sources, and find them again.

Standard library only: CI starts the build before any package is installed.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.images import write_image
from tests.cluster.paths import CACHE, GO_SOURCES, ClusterError

KUBERNETES_PROGRAMS = (
    "etcd",
    "fake-gpu",
    "fake-nodes",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)
"""Names by which the one multi-call program is run."""

CONTAINERD_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")
PAUSE_IMAGE = "localhost/pause:1"
WEB_IMAGE = "localhost/web:1"
"""A web server with a readiness probe, in `web.tar`, for the cluster's own tests."""

RECIPE = 1
"""Raise it when a change of this module changes what it builds."""

UNUSED_DAYS = 14
HOW_TO_GET_GO = (
    "install Go 1.21 or newer (https://go.dev/dl) and run `make cluster`, which builds it once (17 CPU minutes)"
)

Report = Callable[[str], None]


@dataclass(frozen=True)
class Programs:
    """A folder of programs."""

    folder: Path

    def path(self, name: str) -> Path:
        """Return a program's path."""
        return self.folder / name

    def has(self, name: str) -> bool:
        """Tell whether a program is there."""
        return self.path(name).exists()


def find_programs(*, nodes: bool = False) -> Programs | None:
    """Find programs without building: this content's build, else those of `KUBEBUILDER_ASSETS`, which run no nodes."""
    if found := _find_build():
        with contextlib.suppress(OSError):  # somebody else's cache
            os.utime(found.folder.parent)  # what is used is kept
        return found
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    return Programs(Path(assets)) if assets and not nodes else None


def ensure_programs(report: Report, *, nodes: bool = False) -> Programs:
    """Find the programs, or build them; two runs at once build once.

    Raises:
        ClusterError: they are not there and Go is missing, or the build failed.
    """
    if found := find_programs(nodes=nodes):
        return found
    if not go_version():
        raise ClusterError(f"the cluster's programs are not built and Go is missing: {HOW_TO_GET_GO}")
    CACHE.mkdir(parents=True, exist_ok=True)
    with _locked(CACHE / "build.lock", report):
        if found := _find_build():
            return found
        report("building Kubernetes from source, once: about 17 CPU minutes")
        started = time.monotonic()
        _remove_old_builds()
        unfinished = CACHE / f"unfinished-{os.getpid()}"
        _build_into(unfinished / "bin", report)
        unfinished.rename(_build_folder())
        report(f"built in {time.monotonic() - started:.0f} s")
    return Programs(_build_folder() / "bin")


def sources_hash() -> str:
    """Return a hash of everything that the build is made of, save Go's version."""
    digest = hashlib.sha256(str(RECIPE).encode())
    for path in sorted(GO_SOURCES.rglob("*")):
        if path.name in ("go.mod", "go.sum") or path.suffix == ".go":
            digest.update(f"{path.relative_to(GO_SOURCES)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def go_version() -> str | None:
    """Return Go's version for the sources, or nothing where there is no Go."""
    try:
        return _go("env", "GOVERSION").strip()
    except (OSError, ClusterError):
        return None


def _build_folder() -> Path:
    return CACHE / f"{sources_hash()}-{go_version()}"


def _find_build() -> Programs | None:
    if go_version():
        return Programs(_build_folder() / "bin") if _build_folder().is_dir() else None
    builds = sorted(CACHE.glob(f"{sources_hash()}-go*"))  # a cache from elsewhere, whichever Go made it
    return Programs(builds[-1] / "bin") if builds else None


@contextmanager
def _locked(path: Path, report: Report) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another run builds the cluster's programs: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_old_builds() -> None:
    for folder in CACHE.glob("unfinished-*"):  # of builds that died; the lock is ours
        shutil.rmtree(folder)
    for folder in CACHE.glob("*-go*"):
        if folder.name != "go-build" and time.time() - folder.stat().st_mtime > UNUSED_DAYS * 86400:
            shutil.rmtree(folder)


def _build_into(folder: Path, report: Report) -> None:
    folder.mkdir(parents=True)
    kubernetes = _go("list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes").strip()
    helm = _go("list", "-m", "-f", "{{.Version}}", "helm.sh/helm/v3").strip()
    _compile(folder / "kubernetes", ".", _version_flags(kubernetes), report=report)
    for name in KUBERNETES_PROGRAMS:
        (folder / name).symlink_to("kubernetes")
    helm_flags = (f"-X helm.sh/helm/v3/internal/version.version={helm}",)
    _compile(folder / "helm", "helm.sh/helm/v3/cmd/helm", helm_flags, report=report)
    _compile(folder / "coredns", ".", module="coredns", report=report)
    for name in CONTAINERD_PROGRAMS:
        _compile(folder / name, f"github.com/containerd/containerd/v2/cmd/{name}", module="containerd", report=report)
    for name, image in (("pause", PAUSE_IMAGE), ("web", WEB_IMAGE)):
        program = folder / name
        _compile(program, f"./{name}", report=report)
        write_image(folder / f"{name}.tar", image, files={f"/{name}": program}, entrypoint=(f"/{name}",))


def _version_flags(version: str) -> tuple[str, ...]:
    """Without these Kubernetes says v0.0.0-master, and kubectl warns about the skew."""
    major, minor, _ = version.removeprefix("v").split(".", 2)
    values = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "0",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    return tuple(f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items())


def _compile(output: Path, package: str, flags: tuple[str, ...] = (), *, module: str = ".", report: Report) -> None:
    report(f"compiling {output.name}")
    linker = " ".join(("-s", "-w", *flags))
    _go("build", "-trimpath", "-ldflags", linker, "-o", str(output), package, module=module)


def _go(*arguments: str, module: str = ".") -> str:
    settings = {
        "CGO_ENABLED": "0",
        "GOFLAGS": f"-p={os.environ.get('PAGEFLEET_BUILD_JOBS', os.cpu_count() or 1)}",
        "GOWORK": "off",
        "GOGC": os.environ.get("GOGC", "400"),  # a tenth of the compiler's time is its garbage collection
        "GOCACHE": str(CACHE / "go-build"),
    }
    done = subprocess.run(
        ["go", *arguments],
        cwd=GO_SOURCES / module,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ClusterError(f"go {arguments[0]} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout
