"""The id by which a client and our logs name one request: the client's own, or one that we make."""

import uuid
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from pagefleet.engine.errors import RequestRefused

HEADER = "X-Request-Id"
MOST_CHARACTERS = 128
_STATE_KEY = "request_id"


def is_request_id(text: str) -> bool:
    """Tell whether a text can be a header's value and part of an id."""
    return 0 < len(text) <= MOST_CHARACTERS and all("!" <= character <= "~" for character in text)


def take_header(scope: Scope) -> None:
    """Give the request its header's id or a new one; raises RequestRefused for a header that is none."""
    given = Headers(scope=scope).get(HEADER)
    state: dict[str, Any] = scope.setdefault("state", {})
    state[_STATE_KEY] = uuid.uuid4().hex
    if given is None:
        return
    if not is_request_id(given):
        raise RequestRefused(
            f"{HEADER} must be 1 to {MOST_CHARACTERS} visible ASCII characters, such as order-17",
            parameter=HEADER,
            code="invalid_value",
        )
    state[_STATE_KEY] = given


def take_field(scope: Scope, field: str | None) -> str:
    """Let the body's `request_id` name the request and return its id; raises RequestRefused if the header disagrees."""
    state: dict[str, Any] = scope["state"]
    header = Headers(scope=scope).get(HEADER)
    if field is not None:
        if header is not None and header != field:
            raise RequestRefused(
                f"request_id is {field} but the header {HEADER} says {header}; send one of them",
                parameter="request_id",
                code="invalid_value",
            )
        state[_STATE_KEY] = field
    return str(state[_STATE_KEY])


def header_of(scope: Scope) -> tuple[bytes, bytes]:
    """Return the response header that tells the client the id."""
    return HEADER.lower().encode(), str(scope["state"][_STATE_KEY]).encode()
