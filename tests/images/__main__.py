"""Build images by hand: `python -m tests.images [--thin] [IMAGE…]`, IMAGE one of operator, engine, demo and cuda."""

import argparse
import subprocess
import sys

from tests.images.build import build, build_cuda, build_thin, why_not
from tests.images.recipe import IMAGES


def main(arguments: list[str]) -> int:
    """Build the images named, print each one's name and archives, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.images", description=__doc__)
    parser.add_argument("images", nargs="*", metavar="IMAGE", help="default: all but cuda")
    parser.add_argument("--thin", action="store_true", help="code as an archive of its own, a thin layer")
    options = parser.parse_args(arguments)
    names = options.images or list(IMAGES)
    if unknown := sorted({*names} - {*IMAGES, "cuda"}):
        parser.error(f"there is no image {unknown[0]}; write one of {', '.join(IMAGES)}, cuda")
    if reason := why_not():
        sys.stderr.write(f"Images cannot be built here: {reason}.\n")
        return 1
    try:
        for name in names:
            _build(name, thin=options.thin)
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"{error.cmd[0]} ended with {error.returncode}; what it said is above.\n")
        return 1
    return 0


def _build(name: str, *, thin: bool) -> None:
    if name == "cuda":
        sys.stdout.write(f"{build_cuda()}\n")
        return
    built = build_thin(name) if thin else build(name)
    sys.stdout.write(f"{built.reference}\n")
    for archive in built.archives:
        sys.stdout.write(f"  ctr -n k8s.io images import {archive}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
