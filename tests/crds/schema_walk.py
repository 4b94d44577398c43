"""Walk the generated schema: every field with its path, every rule with its sentence."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pagefleet.api.cel import VALIDATIONS
from pagefleet.api.crd import crd_manifest

Schema = dict[str, Any]


@dataclass(frozen=True)
class FoundRule:
    """A rule of the CRD."""

    field: str
    """Path of the field it finds fault with."""
    rule: str
    expression: str

    def says(self, sentence: str) -> bool:
        """Tell whether a sentence is one that this rule makes."""
        literal = re.match(r'"((?:[^"\\]|\\.)*)"', self.expression)
        assert literal, self.expression
        template = json.loads(literal.group())
        pattern = ".*".join(re.escape(part) for part in re.split("%[sd]", template))
        return re.fullmatch(pattern, sentence, re.DOTALL) is not None


def root_schema() -> Schema:
    schema: Schema = crd_manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def walk(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield each node below and including a schema, with its path as the API server writes it."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from walk(field, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[0]")
    if "additionalProperties" in schema:
        yield from walk(schema["additionalProperties"], f"{path}.*")


def rules() -> list[FoundRule]:
    return [
        FoundRule((path + rule.get("fieldPath", "")).removeprefix("."), rule["rule"], rule["messageExpression"])
        for path, schema in walk(root_schema())
        for rule in schema.get(VALIDATIONS, ())
    ]
