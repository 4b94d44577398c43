"""From pydantic's JSON schema to the structural OpenAPI schema that a CustomResourceDefinition needs. Pure."""

from typing import Any

from pydantic import BaseModel

from pagefleet.api.base import MOST_INT32
from pagefleet.api.cel import VALIDATIONS

Schema = dict[str, Any]

_INT_OR_STRING = "x-kubernetes-int-or-string"
# What pydantic adds and a structural schema must not have. Unknown fields are dropped or refused by the API server as
# the request asks, so `additionalProperties: false` has no place there.
_LEFT_OUT = ("title", "examples", "additionalProperties")


def structural_schema(model: type[BaseModel]) -> Schema:
    """Return the schema of a type with references inlined, in the subset of OpenAPI that the API server takes."""
    schema = model.model_json_schema(by_alias=True)
    return _convert(schema, schema.get("$defs", {}))


def without_defaults(schema: Schema) -> Schema:
    """Return a schema without default values: in `status`, what nobody observed stays absent."""
    kept = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in kept:
        kept["properties"] = {name: without_defaults(part) for name, part in kept["properties"].items()}
    if "items" in kept:
        kept["items"] = without_defaults(kept["items"])
    return kept


def _convert(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    schema = _resolve(schema, definitions)
    values_of_map = schema.get("additionalProperties")
    converted = {key: value for key, value in schema.items() if key not in (*_LEFT_OUT, "$defs")}
    if isinstance(values_of_map, dict):
        converted["additionalProperties"] = _convert(values_of_map, definitions)
    if "properties" in converted:
        fields = converted["properties"].items()
        converted["properties"] = {name: _convert(field, definitions) for name, field in fields}
    if "items" in converted:
        converted["items"] = _convert(converted["items"], definitions)
    return _ordered(_scalar(converted))


def _resolve(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """Follow `$ref`, and the one choice of an optional field; what stands beside them wins."""
    if "$ref" in schema:
        outer = {key: value for key, value in schema.items() if key != "$ref"}
        return _resolve({**definitions[schema["$ref"].rpartition("/")[2]], **outer}, definitions)
    if "anyOf" in schema:
        choices = [choice for choice in schema["anyOf"] if choice != {"type": "null"}]
        if len(choices) != 1:
            raise ValueError(f"a structural schema can't choose between types: {schema}")
        outer = {key: value for key, value in schema.items() if key != "anyOf"}
        return _resolve({**choices[0], **outer}, definitions)
    return schema


def _scalar(schema: Schema) -> Schema:
    """Convert the keywords of one node."""
    converted = dict(schema)
    if "description" in converted:  # the lines of a docstring
        converted["description"] = " ".join(converted["description"].split())
    if "const" in converted:
        converted["enum"] = [converted.pop("const")]
    if "exclusiveMinimum" in converted:  # a number in JSON schema, a flag in OpenAPI 3.0
        converted |= {"minimum": converted["exclusiveMinimum"], "exclusiveMinimum": True}
    if converted.get("type") == "integer":
        converted["format"] = "int32" if converted.get("maximum") == MOST_INT32 else "int64"
    elif converted.get("type") == "number":
        converted["format"] = "double"
    if converted.get(_INT_OR_STRING):
        converted["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if VALIDATIONS in converted:
        converted.pop("pattern", None)
    if "default" in converted:
        default = _without_nulls(converted.pop("default"))
        if default is not None:
            converted["default"] = default
    return converted


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return value


def _ordered(schema: Schema) -> Schema:
    """Put what people look for first."""
    first = [key for key in ("type", "description", "default") if key in schema]
    last = [key for key in ("required", "properties", "items", VALIDATIONS) if key in schema]
    middle = sorted(schema.keys() - {*first, *last})
    return {key: schema[key] for key in (*first, *middle, *last)}
