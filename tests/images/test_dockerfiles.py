"""What the Dockerfiles promise, read off their text: no build is needed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.images.recipe import IMAGES, ROOT

DOCKERFILES = sorted({image.dockerfile for image in IMAGES.values()})
ENGINE = "engine_image/pagefleet/engine"


def instructions(dockerfile: str) -> list[str]:
    """Return the instructions of a Dockerfile, each on one line."""
    text = re.sub(r"^#.*\n", "", (ROOT / dockerfile).read_text(), flags=re.MULTILINE)
    return [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_the_base_can_be_chosen(dockerfile: str) -> None:
    assert instructions(dockerfile)[0].startswith("ARG BASE_IMAGE=python:3.11-")


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_the_build_context_holds_what_is_copied(dockerfile: str) -> None:
    allowed = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), flags=re.MULTILINE)
    sources = re.findall(r"source=([^,\s]+)", (ROOT / dockerfile).read_text())
    for line in instructions(dockerfile):
        if line.startswith("COPY") and "--from" not in line:
            sources += line.split()[1:-1]
    assert sources
    assert [source for source in sources if not any(Path(source).is_relative_to(each) for each in allowed)] == []
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_the_conversion_has_every_module_that_it_imports() -> None:
    """The stage that converts the demo's model has a few modules only, so that other changes do not repeat it."""
    (line,) = (line for line in instructions("engine_image/Dockerfile") if line.endswith("/build/pagefleet/engine/"))
    copied = {Path(source).stem for source in line.split()[1:-1]}
    imported = {
        (node.module or "").removeprefix("pagefleet.engine.")
        for module in copied
        for node in imports_at_run_time(ast.parse((ROOT / ENGINE / f"{module}.py").read_text()))
        if (node.module or "").startswith("pagefleet.engine.")
    }
    assert imported
    assert imported <= copied


def imports_at_run_time(tree: ast.AST) -> Iterator[ast.ImportFrom]:
    """Yield the imports of names, but for those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom):
            yield node
        yield from imports_at_run_time(node)
