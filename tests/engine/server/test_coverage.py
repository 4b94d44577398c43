"""No field of the protocol without a test that shows its effect, and none in the document that is not in the types."""

import httpx
from pydantic import BaseModel

from pagefleet.engine.server.protocol import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    SamplingFields,
    StreamOptions,
    TokenizeRequest,
)
from pagefleet.engine.server.unsupported import UNSUPPORTED
from tests.engine.server import (
    test_answers,
    test_beams,
    test_chat_fields,
    test_choices,
    test_completion_fields,
    test_shared_fields,
)

MODELS: dict[str, type[BaseModel]] = {
    "sampling": SamplingFields,
    "chat": ChatRequest,
    "completions": CompletionRequest,
    "tokenize": TokenizeRequest,
    "detokenize": DetokenizeRequest,
    "options": StreamOptions,
    "message": ChatMessage,
}


def covered() -> set[str]:
    modules = (test_answers, test_beams, test_chat_fields, test_choices, test_completion_fields, test_shared_fields)
    tests = [value for module in modules for name, value in vars(module).items() if name.startswith("test_")]
    return {field for test in tests for field in getattr(test, "covered_fields", ())}


def test_every_field_has_a_test() -> None:
    shared = {f"sampling.{name}" for name in SamplingFields.model_fields}
    fields = {f"{model}.{name}" for model, kind in MODELS.items() for name in kind.model_fields}
    own = {name for name in fields if "sampling." + name.split(".")[1] not in shared}
    # An echo is the prompt's text in completions and the last message in chats, so it has a test in each.
    echoes = {"chat.echo", "completions.echo"}
    detokenized = {"tokenize.model", "detokenize.model"}

    assert covered() == (own | shared | echoes | detokenized) - {"sampling.echo"}


def test_no_field_is_both_supported_and_not() -> None:
    assert not {name for kind in MODELS.values() for name in kind.model_fields} & UNSUPPORTED.keys()


def test_the_document_knows_every_body(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]

    bodies: dict[str, type[BaseModel]] = {
        "/v1/chat/completions": ChatRequest,
        "/v1/completions": CompletionRequest,
        "/tokenize": TokenizeRequest,
        "/detokenize": DetokenizeRequest,
    }
    for path, kind in bodies.items():
        reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert reference == f"#/components/schemas/{kind.__name__}"
        assert schemas[kind.__name__]["properties"].keys() == kind.model_fields.keys()
