"""Build the project's images without a Docker daemon: as archives that `ctr images import` takes.

Each archive is named by the hash of what it is made of, so a build that changes nothing costs a look at some files.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.images import buildah
from tests.images.base import base_archive
from tests.images.cache import HOUR_S, cache_folder, content_hash, forget_older, lock, tree_hash
from tests.images.dockerfile import copied_beside_the_code
from tests.images.recipe import IMAGES, ROOT, Image
from tests.images.thin_layer import code_files, pack, write_thin_archive
from tests.images.wheelhouse import wheelhouse

MOST_IMAGES = 120
"""In the layer store: some builds of each image, about 15 GB."""


@dataclass(frozen=True)
class BuiltImage:
    """Name an image and the archives that bring it to a node."""

    reference: str
    """What a pod names; its tag is the hash of the content, so that a change is another image."""
    archives: tuple[Path, ...]
    """To import in this order."""


def build(name: str) -> BuiltImage:
    """Return an image as the Dockerfile makes it, in one archive."""
    image = IMAGES[name]
    with lock():
        key = content_hash(_deps_key(image), tree_hash([ROOT / folder for folder, _ in image.code]))
        reference = f"{image.repository}:{key}"
        archive = cache_folder() / f"{name}-{key}.tar"
        if not archive.exists():
            _build_archive(image, image.target, archive, reference)
            forget_older(archive, after_s=HOUR_S)
    return BuiltImage(reference, (archive,))


def build_in_store(name: str) -> str:
    """Build an image into buildah's own store only, and return its id there."""
    image = IMAGES[name]
    with lock():
        return _build_target(image, image.target)


def build_thin(name: str) -> BuiltImage:
    """Return an image as two archives: everything but the code, which seldom changes, and the code as a thin layer."""
    image = IMAGES[name]
    with lock():
        key = _deps_key(image)
        parent = cache_folder() / f"{name}-deps-{key}.tar"
        if not parent.exists():
            _build_archive(image, image.deps_target, parent, f"{image.repository}-deps:{key}")
            forget_older(parent, after_s=HOUR_S)
        layer = pack(code_files(image))
        key = content_hash(key, layer)
        reference = f"{image.repository}:{key}"
        archive = cache_folder() / f"{name}-thin-{key}.tar"
        if not archive.exists():
            write_thin_archive(parent, layer, reference, archive)
            forget_older(archive, after_s=HOUR_S)
    return BuiltImage(reference, (parent, archive))


def build_cuda() -> str:
    """Build the engine with CUDA into buildah's own store, gigabytes of it, and return the image's name."""
    image = IMAGES["engine"]
    with lock():
        base = buildah.import_base(base_archive("cuda"))
        wheels = wheelhouse(image, cuda=True)
        name = f"{image.repository}:cuda"
        buildah.build(image.dockerfile, "cuda", base=base, build_base=base, wheels=wheels, tag=name)
    return name


def why_not() -> str:
    """Say what this machine lacks for a build, or nothing when it lacks nothing."""
    missing = buildah.missing_tools()
    if missing:
        return f"{' and '.join(missing)} missing: apt-get install --no-install-recommends {' '.join(missing)}"
    return buildah.why_not_root()


def _deps_key(image: Image) -> str:
    """Name everything in an image but the code: its bases, its wheels, its Dockerfile and what that compiles."""
    dockerfile = (ROOT / image.dockerfile).read_bytes()
    bases = (base_archive("run").name, base_archive("build").name)
    copied = tree_hash(copied_beside_the_code(image.dockerfile))
    return content_hash(dockerfile, *bases, wheelhouse(image).name, copied, image.deps_target)


def _build_archive(image: Image, target: str, archive: Path, reference: str) -> None:
    began_s = time.monotonic()
    built = _build_target(image, target)
    built_s = time.monotonic()
    buildah.push(built, archive, reference)
    buildah.prune(most_images=MOST_IMAGES)
    sys.stderr.write(
        f"{archive.name}: built in {built_s - began_s:.1f} s, written in {time.monotonic() - built_s:.1f} s, "
        f"{archive.stat().st_size / 1e6:.0f} MB\n"
    )


def _build_target(image: Image, target: str) -> str:
    base, build_base = (buildah.import_base(base_archive(kind)) for kind in ("run", "build"))
    wheels = wheelhouse(image)
    tag = f"{image.repository}:{target}"
    return buildah.build(image.dockerfile, target, base=base, build_base=build_base, wheels=wheels, tag=tag)
