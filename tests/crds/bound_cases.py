"""For every bound in the schema of `spec` a value that keeps it, one that breaks it, and what the API server says."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from tests.crds.judge import NAME, NAMESPACE
from tests.crds.schema_walk import Schema, root_schema, walk

# What must stand beside a field for the object to be right but for that field.
_BESIDE: dict[str, dict[str, Any]] = {
    "spec.model": {"uri": "hf://a/b"},
    "spec.model.tokenSecret": {"name": "x"},
    "spec.engine.speculative": {"method": "ngram"},
    "spec.tuning.quality": {"model": "hf://a/b"},
    "spec.engine.speculative.model": {"uri": "hf://a/b"},
    "spec.engine.speculative.model.tokenSecret": {"name": "x"},
}
# Texts that are right in form and as long as a case wants them.
_LONG_TEXTS = {"uri": "hf://a", "resource": "a/a", "name": "a", "key": "a"}
# Counts whose upper bound another field keeps them from.
_HELD_BY_OTHERS = {"spec.accelerator.count", "spec.autoscaling.minReplicas"}


@dataclass(frozen=True)
class BoundCase:
    """One keyword of one field, broken and, where it has a counterpart, kept."""

    field: str
    sentence: str
    refused: str
    accepted: str | None

    def __str__(self) -> str:
        return f"{self.field}: {self.sentence[:50]}"


def _manifest(path: str, value: Any) -> str:
    """Write an object that has a value at a path, and all that this needs."""
    spec: dict[str, Any] = {"model": {"uri": "hf://a/b"}}
    names = path.removeprefix("spec.").split(".")
    section = spec
    for depth, name in enumerate(names[:-1], start=1):
        section = section.setdefault(name, {})
        for beside, needed in _BESIDE.get(".".join(["spec", *names[:depth]]), {}).items():
            section.setdefault(beside, needed)
    section[names[-1]] = value
    if "speculative" in path and ((names[-1] == "method" and value == "draft") or ".model." in path):
        spec["engine"]["speculative"] |= {"method": "draft"}
        spec["engine"]["speculative"].setdefault("model", {"uri": "hf://a/b"})
    manifest = {
        "apiVersion": "serving.pagefleet.io/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": spec,
    }
    return yaml.safe_dump(manifest, sort_keys=False)


def _number(path: str, node: Schema) -> Iterator[tuple[str, Any, Any]]:
    step: float = 1 if node["type"] == "integer" else 0.25
    least, most = node["minimum"], node["maximum"]
    if node.get("exclusiveMinimum"):
        yield f"{path} in body should be greater than {least}", least, least + step
    else:
        yield f"{path} in body should be greater than or equal to {least}", least - step, least
    yield (
        f"{path} in body should be less than or equal to {most}",
        most + step,
        None if path in _HELD_BY_OTHERS else most,
    )


def _string(path: str, node: Schema) -> Iterator[tuple[str, Any, Any]]:
    if "enum" in node:
        choices = ", ".join(json.dumps(choice) for choice in node["enum"])
        yield f'Unsupported value: "wrong": supported values: {choices}', "wrong", node["enum"][-1]
    if "minLength" in node:
        yield f"{path} in body should be at least {node['minLength']} chars long", "", None
    start = _LONG_TEXTS.get(path.rpartition(".")[2])
    if "maxLength" in node:
        most = node["maxLength"]
        kept = start + "a" * (most - len(start)) if start else None
        yield f"Too long: may not be more than {most} bytes", (kept or "1h" * most) + "a", kept
    yield f'{path} in body must be of type string: "integer"', 5, None


def _wrong_type(path: str, node: Schema) -> tuple[str, Any, Any]:
    kind = node["type"]
    wrong: tuple[Any, str] = (5, "integer") if kind in ("object", "array", "boolean") else ("5", "string")
    return f'{path} in body must be of type {kind}: "{wrong[1]}"', wrong[0], None


def _cases(path: str, node: Schema) -> Iterator[tuple[str, Any, Any]]:
    kind = node.get("type")
    if kind == "string":
        yield from _string(path, node)
        return
    if kind is not None:
        yield _wrong_type(path, node)
    if kind in ("integer", "number"):
        yield from _number(path, node)
    if "minItems" in node:
        yield f"{path} in body should have at least {node['minItems']} items", [], [node["items"]["enum"][0]] * 200


def bound_cases() -> list[BoundCase]:
    spec = root_schema()["properties"]["spec"]
    return [
        BoundCase(path, sentence, _manifest(path, refused), None if kept is None else _manifest(path, kept))
        for path, node in walk(spec, "spec")
        if path != "spec" and "[" not in path
        for sentence, refused, kept in _cases(path, node)
    ]
