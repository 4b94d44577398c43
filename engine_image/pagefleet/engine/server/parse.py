"""From a request's bytes to its checked fields, or to one sentence that names the field that is wrong."""

from typing import TypeVar

import pydantic_core
from pydantic import ValidationError

from pagefleet.engine.errors import RequestRefused
from pagefleet.engine.server.protocol import StrictModel
from pagefleet.engine.server.unsupported import UNSUPPORTED, UNSUPPORTED_IN_MESSAGE, drop_switched_off

RequestModel = TypeVar("RequestModel", bound=StrictModel)


def parse_request(kind: type[RequestModel], body: bytes) -> RequestModel:
    """Read a request body; raises RequestRefused that names the field that is wrong."""
    try:
        data = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestRefused(f"the body is no valid JSON: {error}", code="invalid_json") from error
    if not isinstance(data, dict):
        raise RequestRefused("the body must be a JSON object", code="invalid_json")
    data = drop_switched_off(data, UNSUPPORTED, "")
    # OpenAI's clients send null for "not given"
    data = {name: value for name, value in data.items() if value is not None or name not in kind.model_fields}
    messages = data.get("messages")
    if isinstance(messages, list):
        data["messages"] = [
            drop_switched_off(message, UNSUPPORTED_IN_MESSAGE, f"messages[{index}].")
            if isinstance(message, dict)
            else message
            for index, message in enumerate(messages)
        ]
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _refusal(error) from error


def _refusal(error: ValidationError) -> RequestRefused:
    first = error.errors(include_url=False)[0]
    field = ""
    for part in first["loc"]:
        if isinstance(part, int):
            field += f"[{part}]"
        elif not part.startswith(("list[", "function-")):
            field += f".{part}" if field else part
    match first["type"]:
        case "extra_forbidden":
            return RequestRefused(f"unknown field {field}", parameter=field, code="unknown_parameter")
        case "missing":
            return RequestRefused(f"{field} is required", parameter=field, code="missing_required_parameter")
        case "value_error":
            return RequestRefused(f"{field}: {first['ctx']['error']}", parameter=field, code="invalid_value")
        case _:
            reason = first["msg"].replace("Input should", "it should")
            shown = repr(first["input"])
            got = f", not {shown}" if len(shown) <= 60 else ""
            return RequestRefused(f"{field}: {reason}{got}", parameter=field, code="invalid_value")
