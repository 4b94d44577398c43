"""Run buildah: it builds Dockerfiles without a daemon, in a chroot, into a layer store in the cache folder."""

import os
import shutil
from pathlib import Path

from tests.images.cache import cache_folder
from tests.images.programs import run_quietly
from tests.images.recipe import EPOCH, ROOT

SCRATCH_BASE = "localhost/pagefleet-base"


def buildah(*arguments: str) -> str:
    """Run one buildah command on our own store and return its output, stripped; raises CalledProcessError."""
    store = cache_folder() / "store"
    return run_quietly(["buildah", "--root", str(store), "--runroot", f"{store}.run", *arguments]).strip()


def has_image(name: str) -> bool:
    """Tell whether the store holds an image of a name with a tag."""
    return name in buildah("images", "--format={{.Name}}:{{.Tag}}").splitlines()


def import_base(archive: Path) -> str:
    """Return the image made of a root file system, named by the archive's name; made now if need be."""
    name = f"{SCRATCH_BASE}:{archive.stem.removeprefix('base-')}"
    if not has_image(name):
        container = buildah("from", "scratch")
        buildah("add", "--quiet", container, str(archive), "/")
        buildah("config", "--cmd=python3", container)
        buildah("commit", "--quiet", f"--timestamp={EPOCH}", container, name)
        buildah("rm", container)
    return name


def build(dockerfile: str, target: str, *, base: str, build_base: str, wheels: Path, tag: str) -> str:
    """Build one target with the repository as context and return the image's id.

    Layers of an earlier build are used again: the wheels' folder, named by its content, is part of a layer's history.
    """
    mount = f"/{wheels.name}"
    return buildah(
        "bud",
        "--quiet",
        "--layers",
        "--isolation=chroot",
        "--network=host",
        f"--timestamp={EPOCH}",
        f"--target={target}",
        f"--volume={wheels}:{mount}:ro",
        f"--build-arg=BASE_IMAGE={base}",
        f"--build-arg=BUILD_IMAGE={build_base}",
        f"--build-arg=PIP_FLAGS=--no-index --find-links={mount}",
        f"--tag={tag}",
        f"--file={ROOT / dockerfile}",
        str(ROOT),
    ).splitlines()[-1]


def push(image: str, archive: Path, reference: str) -> None:
    """Write an image as a docker-archive, whose layers are uncompressed: each digest is the layer's diff id."""
    partial = archive.with_suffix(".partial.tar")
    partial.unlink(missing_ok=True)  # buildah appends to an archive, or refuses
    buildah("push", "--quiet", image, f"docker-archive:{partial}:{reference}")
    partial.rename(archive)


def prune(*, most_images: int) -> None:
    """Remove what killed builds and changed layers have left when the store holds more images than this.

    Layers that could be used again go too, so that the next build of each takes its full time once.
    """
    if len(buildah("images", "--all", "--quiet").splitlines()) > most_images:
        buildah("rm", "--all")
        buildah("rmi", "--prune")


def missing_tools() -> list[str]:
    """Return the programs that a build needs and this machine lacks."""
    return [tool for tool in ("buildah", "mmdebstrap") if shutil.which(tool) is None]


def why_not_root() -> str:
    """Say that a build needs root when this is not root, else nothing."""
    return "" if os.geteuid() == 0 else "a build in a chroot needs root"
