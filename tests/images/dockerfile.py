"""Read a Dockerfile as far as builds and tests must: its instructions, and what it copies from the repository."""

import re
from pathlib import Path

from tests.images.recipe import ROOT

CODE_STAGE = "app"
"""The stage of the project's own code, which every image takes as its last layer."""


def instructions(dockerfile: str) -> list[str]:
    """Return the instructions of a Dockerfile, each on one line."""
    text = re.sub(r"^#.*\n", "", (ROOT / dockerfile).read_text(), flags=re.MULTILINE)
    return [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def copied_beside_the_code(dockerfile: str) -> list[Path]:
    """Return what all stages but that of the code copy from the repository: images without their code depend on it."""
    copied = []
    stage = ""
    for line in instructions(dockerfile):
        keyword, *arguments = line.split()
        if keyword == "FROM":
            stage = arguments[-1]
        elif keyword == "COPY" and stage != CODE_STAGE and not arguments[0].startswith("--from"):
            copied += [ROOT / source for source in arguments[:-1]]
    return copied
