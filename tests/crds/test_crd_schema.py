from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import ConfigDict, Field

from pagefleet.api.base import ApiModel, Fraction, NonNegativeInteger, PositiveInteger
from pagefleet.api.cel import Rule, Rules, section_rules, text
from pagefleet.api.crd_schema import structural_schema, without_defaults
from pagefleet.api.quantity import Quantity

RULE = Rule("self != ''", text("is %s; write x", "self"))
INT32 = {"type": "integer", "format": "int32", "minimum": 1, "maximum": 2147483647}


class Colour(StrEnum):
    """A colour."""

    RED = "red"


class Inner(ApiModel):
    """An inner part."""

    model_config = ConfigDict(json_schema_extra=section_rules(RULE))

    value: int | None = None
    """A value
    of two lines."""


class Outer(ApiModel):
    """An outer part."""

    count: PositiveInteger | None = None
    size: NonNegativeInteger = 3
    share: Fraction = 0.5
    colour: Colour | None = None
    only: Literal["one"] = "one"
    memory: Quantity | None = None
    inner: Inner = Inner()
    """Beside a reference."""
    maybe: Inner | None = None
    many: tuple[Inner, ...] = ()
    words: dict[str, str] = Field(default_factory=dict)
    word: Annotated[str, Field(max_length=9, pattern="^a$"), Rules((RULE,))] | None = None


SCHEMA = structural_schema(Outer)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("count", INT32),
        ("size", {"type": "integer", "format": "int64", "minimum": 0, "default": 3}),
        (
            "share",
            {
                "type": "number",
                "format": "double",
                "minimum": 0,
                "exclusiveMinimum": True,
                "maximum": 1,
                "default": 0.5,
            },
        ),
        ("colour", {"type": "string", "description": "A colour.", "enum": ["red"]}),
        ("only", {"type": "string", "enum": ["one"], "default": "one"}),
        ("words", {"type": "object", "additionalProperties": {"type": "string"}}),
        ("word", {"type": "string", "maxLength": 9, "x-kubernetes-validations": [RULE.to_schema()]}),
    ],
)
def test_conversions(field: str, expected: dict[str, Any]) -> None:
    assert SCHEMA["properties"][field] == expected


def test_a_quantity_is_a_number_or_a_text() -> None:
    memory = SCHEMA["properties"]["memory"]
    assert memory["x-kubernetes-int-or-string"] is True
    assert memory["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    assert "type" not in memory


def test_references_are_written_out() -> None:
    inner = SCHEMA["properties"]["inner"]
    assert inner["description"] == "Beside a reference."
    assert inner["default"] == {}
    assert inner["properties"] == {
        "value": {"type": "integer", "format": "int64", "description": "A value of two lines."}
    }
    assert inner["x-kubernetes-validations"] == [RULE.to_schema()]
    assert SCHEMA["properties"]["maybe"]["description"] == "An inner part."
    assert SCHEMA["properties"]["many"]["items"]["type"] == "object"
    assert "$defs" not in SCHEMA


def test_a_choice_of_types_is_an_error() -> None:
    class Choice(ApiModel):
        value: int | str

    with pytest.raises(ValueError, match="can't choose between types"):
        structural_schema(Choice)


def test_without_defaults() -> None:
    bare = without_defaults(SCHEMA)
    assert "default" not in str(bare)
    assert SCHEMA["properties"]["size"]["default"] == 3
