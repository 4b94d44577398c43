"""Rules in CEL beside the types: the API server judges with them what a schema can't say, in the reader's own words.

Each one repeats a validator of the type it stands on, down to the sentence; a test sends the same mistakes to both. No
schema `pattern` is left where a rule says the same, because the API server would show the pattern to the user.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

VALIDATIONS: Final = "x-kubernetes-validations"


def text(template: str, *arguments: str) -> str:
    """Return the CEL expression of a text in which each %s or %d stands for the CEL expression of an argument."""
    quoted = json.dumps(template, ensure_ascii=False)
    return f"{quoted}.format([{', '.join(arguments)}])" if arguments else quoted


def pattern(regular_expression: str) -> str:
    """Return a whole-text pattern as a CEL literal. It must mean the same to Python's `re.ASCII` and to RE2."""
    return "r'^(?:" + regular_expression.removeprefix("^").removesuffix("$") + ")$'"


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL expression that must be true, and the CEL expression of what to say if it is not."""

    rule: str
    sentence: str
    """Made by `text`, so that it can name the wrong value."""
    field: str = ""
    """Path of the field at fault below the section, such as `.metadata.name`; empty is the section itself."""

    def to_schema(self) -> dict[str, Any]:
        """Return the rule as the CRD writes it."""
        where = {"fieldPath": self.field} if self.field else {}
        return {"rule": self.rule, "messageExpression": self.sentence, **where}


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules on a scalar, among the annotations of its type."""

    rules: tuple[Rule, ...]

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Add the rules to the schema of the type."""
        return {**handler(core_schema), **section_rules(*self.rules)}


def section_rules(*rules: Rule) -> dict[str, Any]:
    """Return rules as the `json_schema_extra` of a section, which sees all its fields as `self`."""
    return {VALIDATIONS: [rule.to_schema() for rule in rules]}
