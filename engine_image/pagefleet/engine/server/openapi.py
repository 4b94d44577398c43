"""The OpenAPI document of the public port, made of the types that requests are checked with."""

from typing import Any

from pydantic.json_schema import models_json_schema

from pagefleet.engine.server.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

_REFERENCE = "#/components/schemas/{model}"

_BODIES = (
    ("/v1/chat/completions", ChatRequest, "Continue a chat", True),
    ("/v1/completions", CompletionRequest, "Continue texts", True),
    ("/tokenize", TokenizeRequest, "Turn a text or a chat into token ids", False),
    ("/detokenize", DetokenizeRequest, "Turn token ids into text", False),
)

_READS = (
    ("/v1/models", "List the model that is served"),
    ("/health", "Tell whether requests are taken"),
    ("/ping", "Tell whether requests are taken"),
    ("/load", "Count the requests in flight"),
    ("/version", "Tell the version"),
)

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"enum": ["invalid_request_error", "server_error"]},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

_PLAIN_ERRORS = {
    "400": "the request is wrong; the error names the field",
    "401": "the API key is missing or wrong",
    "404": "no such model",
    "413": "the body is too large",
    "415": "the body is no JSON",
}


def openapi_document(version: str) -> dict[str, Any]:
    """Return the document, in OpenAPI 3.1."""
    _, schemas = models_json_schema([(model, "validation") for _, model, _, _ in _BODIES], ref_template=_REFERENCE)
    paths: dict[str, Any] = {
        path: {"post": _generating(model.__name__, summary, streams=streams)}
        for path, model, summary, streams in _BODIES
    }
    for path, summary in _READS:
        may_be_unready = path in ("/health", "/ping")
        unready = {"503": {"description": "not ready"}} if may_be_unready else {}
        errors = _errors() if path.startswith("/v1") else unready
        paths[path] = {"get": {"summary": summary, "responses": {"200": {"description": "the answer"}, **errors}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "pagefleet engine", "version": version},
        "paths": paths,
        "components": {
            "schemas": {**schemas["$defs"], "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _generating(model: str, summary: str, *, streams: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    body = {"application/json": {"schema": {"$ref": _REFERENCE.format(model=model)}}}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": body},
        "responses": {"200": {"description": "the answer", "content": content}, **_errors()},
    }


def _errors() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": _REFERENCE.format(model="Error")}}}
    retry = {"Retry-After": {"schema": {"type": "integer"}, "description": "seconds"}}
    return {
        **{status: {"description": text, "content": content} for status, text in _PLAIN_ERRORS.items()},
        "503": {"description": "loading, draining or full: try again", "headers": retry, "content": content},
    }
