"""What the Dockerfiles promise, read off their text: no build is needed."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.images.dockerfile import copied_beside_the_code, instructions
from tests.images.recipe import IMAGES, ROOT, Image

DOCKERFILES = sorted({image.dockerfile for image in IMAGES.values()})
ENGINE = "engine_image/pagefleet/engine"


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


def test_the_operators_image_has_what_the_autoscaler_needs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["autoscaler"]
    assert {*extras["autoscaler"]} <= {*extras["operator"]}


@pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
def test_code_is_the_last_layer_and_nothing_comes_after_it(image: Image) -> None:
    """So that a thin layer of code over the image without it is the whole image."""
    lines = instructions(image.dockerfile)
    begin = lines.index(f"FROM {image.deps_target} AS {image.target}")
    end = next((number for number in range(begin + 1, len(lines)) if lines[number].startswith("FROM")), len(lines))
    assert lines[begin + 1 : end] == ["COPY --from=app /opt/app /opt/app"]


def test_what_an_image_is_made_of_beside_its_code_is_known() -> None:
    """An archive without the code is used again until one of these changes."""
    copied = {str(path.relative_to(ROOT)) for path in copied_beside_the_code("engine_image/Dockerfile")}
    assert f"{ENGINE}/kernels/cpu" in copied, "kernels are compiled in a stage of their own"
    assert f"{ENGINE}/weights.py" in copied, "and a model is converted"
    assert "engine_image/pagefleet" not in copied
    assert copied_beside_the_code("operator/Dockerfile") == []


def imports_at_run_time(tree: ast.AST) -> Iterator[ast.ImportFrom]:
    """Yield the imports of names, but for those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom):
            yield node
        yield from imports_at_run_time(node)
