"""Pydantic's findings in the words of a manifest: the value that is wrong, and one that would work."""

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pagefleet.api.manifest_tree import Path
from pagefleet.api.v1alpha1 import InferenceService, InferenceServiceSpec

_EXAMPLES = {
    "metadata": "{name: chat}",
    "metadata.name": "chat",
    "spec": "{model: {uri: hf://organisation/model}}",
    "spec.model": "{uri: hf://organisation/model}",
    "spec.model.uri": "hf://organisation/model",
    "spec.model.name": "chat",
    "spec.model.tokenSecret.name": "hf-token",
    "spec.accelerator.resource": "nvidia.com/gpu",
    "spec.engine.speculative.method": "ngram",
    "spec.engine.speculative.model.uri": "hf://organisation/model",
}
_TYPE_NAMES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "model_type": "a section of fields",
    "dict_type": "a section of fields",
    "tuple_type": "a list",
}


@dataclass(frozen=True)
class FieldMistake:
    """One mistake in a field."""

    path: Path
    message: str


def explain(error: ValidationError) -> list[FieldMistake]:
    """Return one mistake for each that the user made, in pydantic's order.

    A misspelt required field is both unknown and missing to pydantic; here it is one mistake.
    """
    details = error.errors(include_url=False)
    meant: set[str] = set()
    mistakes: list[FieldMistake] = []
    for detail in details:
        if detail["type"] == "extra_forbidden":
            suggestion = _meant_field(detail["loc"])
            if suggestion:
                meant.add(suggestion)
            mistakes.append(FieldMistake(detail["loc"], _unknown_field(detail["loc"], suggestion)))
    for detail in details:
        path = path_text(detail["loc"])
        if detail["type"] == "extra_forbidden":
            continue
        if detail["type"] == "missing" and any(field == path or field.startswith(f"{path}.") for field in meant):
            continue
        mistakes.append(FieldMistake(detail["loc"], _message(detail)))
    return mistakes


def path_text(path: Sequence[str | int]) -> str:
    """Return a path as people write it, such as `spec.engine.blockSize` or `items[0].metadata.name`."""
    text = ""
    for part in path:
        if isinstance(part, int) or "." in part or "/" in part:
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def nearest(word: str, choices: Sequence[str]) -> str | None:
    """Return the choice that a misspelt word most likely means, or None. Case, - and _ don't count."""
    by_plain = {_plain(choice): choice for choice in choices}
    close = difflib.get_close_matches(_plain(word), by_plain, n=1, cutoff=0.65)
    return by_plain[close[0]] if close else None


def shown(value: object) -> str:
    """Return a wrong value on one short line, as YAML would show it."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = text if text.isprintable() and text else json.dumps(text)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _message(detail: ErrorDetails) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    example = _EXAMPLES.get(path_text(detail["loc"]))
    if kind == "value_error":
        return str(context["error"])
    if kind == "missing":
        name = detail["loc"][-1]
        return f"is required; write {name}: {example}" if example else "is required"
    if kind == "enum":
        return _not_a_choice(value, detail)
    if kind in _TYPE_NAMES:
        return _wrong_type(value, _TYPE_NAMES[kind])
    if kind == "less_than_equal" and context["le"] > 1:
        return f"{shown(value)} is too large; write {context['le']} or less"
    if kind in ("greater_than", "less_than_equal"):  # the bounds of a share
        percent = isinstance(value, int | float) and 1 < value <= 100
        return (
            f"{shown(value)} is no share; write a number above 0 and up to 1, such as {value / 100 if percent else 0.9}"
        )
    if kind == "greater_than_equal":
        return f"{shown(value)} is too small; write {context['ge']} or more"
    if kind == "string_too_long":
        return f"{shown(value)} is too long; write {context['max_length']} characters or fewer"
    if kind in ("string_too_short", "too_short"):
        return "is empty; write a value, or leave the field out"
    if kind == "string_pattern_mismatch":
        return f"{shown(value)} has a form that is not allowed here; write a value such as {example}"
    return f"{shown(value)} does not work here: {detail['msg']}"


def _wrong_type(value: object, wanted: str) -> str:
    if isinstance(value, str) and wanted in ("a whole number", "a number"):
        fix = "; write it without quotes" if value.isdigit() else ""
        return f'"{shown(value)}" is text, not {wanted}{fix}'
    if wanted == "text" and isinstance(value, bool | int | float):
        return f'{shown(value)} is not text; write it in quotes: "{shown(value)}"'
    if wanted == "true or false" and isinstance(value, str):
        fix = f"; write it without quotes: {value.lower()}" if value.lower() in ("true", "false") else ""
        return f'"{shown(value)}" is text, not true or false{fix}'
    return f"{shown(value)} is not {wanted}"


def _not_a_choice(value: object, detail: ErrorDetails) -> str:
    choices = [choice.strip("'") for choice in detail["ctx"]["expected"].replace(" or ", ", ").split(", ")]
    if value is False and "Off" in choices:
        return 'is false, because YAML reads a bare Off so; write it in quotes: "Off"'
    near = nearest(value, choices) if isinstance(value, str) else None
    return f"{shown(value)} is not one of {', '.join(choices)}" + (f"; did you mean {near}?" if near else "")


def _unknown_field(path: Path, suggestion: str | None) -> str:
    if suggestion is None:
        return f"unknown field; known here: {', '.join(sorted(_fields(path[:-1])))}"
    parent, _, name = suggestion.rpartition(".")
    return f"unknown field; did you mean {name if parent == path_text(path[:-1]) else suggestion}?"


def _meant_field(path: Path) -> str | None:
    """Return the full path of the field that an unknown one means: respelt, elsewhere in `spec`, or near."""
    name, parent = str(path[-1]), path[:-1]
    if parent == ("spec", "template"):
        return path_text((*parent, "spec", name))  # pod fields are the patch's usual content
    siblings = list(_fields(parent))
    same = [sibling for sibling in siblings if _plain(sibling) == _plain(name)]
    if same:
        return path_text((*parent, same[0]))
    elsewhere = [place for place in _places(InferenceServiceSpec, ("spec",)) if _plain(str(place[-1])) == _plain(name)]
    if elsewhere:
        return path_text(elsewhere[0])
    near = nearest(name, siblings)
    return path_text((*parent, near)) if near else None


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _fields(path: Path) -> dict[str, Any]:
    """Return the fields of the section at a path, with the type of each."""
    model: type[BaseModel] | None = InferenceService
    for part in path:
        if isinstance(part, str) and model is not None:
            model = _section(_annotations(model).get(part))
    return _annotations(model) if model else {}


def _annotations(model: type[BaseModel]) -> dict[str, Any]:
    return {info.alias or name: info.annotation for name, info in model.model_fields.items()}


def _section(annotation: Any) -> type[BaseModel] | None:
    """Return the section type inside an annotation such as `EngineSpec | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section(part))), None)


def _places(model: type[BaseModel], path: Path) -> Iterator[Path]:
    """Yield the paths of all fields in and below a section, the nearest to the top first."""
    sections = []
    for name, annotation in _annotations(model).items():
        yield (*path, name)
        section = _section(annotation)
        if section:
            sections.append((section, (*path, name)))
    for section, place in sections:
        yield from _places(section, place)
