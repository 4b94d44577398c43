"""Requests as nobody would write them: made of the API's fields by hypothesis, of its document by schemathesis."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode

from pagefleet.engine.server.openapi import openapi_document
from pagefleet.engine.server.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from pagefleet.engine.server.unsupported import UNSUPPORTED

VOCABULARY = 512

Fate = Literal["read", "leave_at_once", "leave_in_between"]


@dataclass(frozen=True)
class Request:
    """One HTTP request and whether its client stays to read the answer."""

    method: str
    path: str
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    fate: Fate = "read"


wild = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
"""Any JSON, and what Python writes although it is none: NaN, infinities, lone surrogates."""

tokens = st.integers(0, VOCABULARY - 1)
texts = st.text(max_size=30) | st.sampled_from(["once upon a time", "naïve 你好 🦀", "<|end|>", "the " * 40])
short = st.text("abc de", min_size=1, max_size=4)

SHARED: dict[str, st.SearchStrategy[Any]] = {
    "model": st.just("tiny"),
    "max_tokens": st.integers(0, 24),
    "min_tokens": st.integers(0, 4),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1, exclude_min=True),
    "top_k": st.integers(-1, 600),
    "min_p": st.floats(0, 1),
    "repetition_penalty": st.floats(0.01, 100),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "logit_bias": st.dictionaries(tokens.map(str), st.floats(-100, 100), max_size=4),
    "allowed_token_ids": st.lists(tokens, max_size=4),
    "bad_words": st.lists(short, max_size=3),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "stop": short | st.lists(short, max_size=3),
    "stop_token_ids": st.lists(tokens, max_size=3),
    "prompt_logprobs": st.integers(0, 20),
    "truncate_prompt_tokens": st.just(-1) | st.integers(1, 20),
    "request_id": st.text("abc-1", min_size=1, max_size=8),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": st.booleans()}),
    "user": texts,
    **dict.fromkeys(
        (
            "include_stop_str_in_output",
            "ignore_eos",
            "skip_special_tokens",
            "echo",
            "return_token_ids",
            "return_tokens_as_token_ids",
        ),
        st.booleans(),
    ),
}
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "developer"]), "content": texts},
        optional={"name": short},
    ),
    min_size=1,
    max_size=3,
)
CHAT = SHARED | {
    "messages": MESSAGES,
    "max_completion_tokens": st.integers(1, 24),
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(0, 20),
    "add_special_tokens": st.booleans(),
    "add_generation_prompt": st.booleans(),
    "continue_final_message": st.booleans(),
    "chat_template": st.none(),
    "chat_template_kwargs": st.dictionaries(short, wild, max_size=2),
}
PROMPTS = texts | st.lists(texts, min_size=1, max_size=3) | st.lists(tokens, min_size=1, max_size=40)
COMPLETIONS = SHARED | {
    "prompt": PROMPTS | st.lists(st.lists(tokens, min_size=1, max_size=9), min_size=1, max_size=3),
    "logprobs": st.integers(0, 5),
    "add_special_tokens": st.booleans(),
}
ENDPOINTS: tuple[tuple[str, type, dict[str, st.SearchStrategy[Any]], str], ...] = (
    ("/v1/chat/completions", ChatRequest, CHAT, "messages"),
    ("/v1/completions", CompletionRequest, COMPLETIONS, "prompt"),
)
EVERY_FIELD = sorted(
    {
        *(
            name
            for kind in (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
            for name in kind.model_fields
        ),
        *UNSUPPORTED,
    }
)


@st.composite
def bodies(draw: st.DrawFn, fields: dict[str, st.SearchStrategy[Any]], required: str) -> dict[str, Any]:
    """Draw a body with a few right fields, and in one of three a wrong one or two."""
    names = draw(st.lists(st.sampled_from(sorted(fields)), max_size=8, unique=True))
    body = {name: draw(fields[name]) for name in (required, "max_tokens", *names)}
    if draw(st.integers(0, 2)) == 0:
        body |= draw(st.dictionaries(st.sampled_from(EVERY_FIELD) | st.text(max_size=5), wild, min_size=1, max_size=2))
    return body


@st.composite
def field_requests(draw: st.DrawFn) -> Request:
    """Draw a request to an endpoint that generates."""
    path, _, fields, required = draw(st.sampled_from(ENDPOINTS))
    body = json.dumps(draw(bodies(fields, required))).encode()
    fate: Fate = draw(st.sampled_from(["read"] * 8 + ["leave_at_once", "leave_in_between"]))
    return Request("POST", path, body, fate=fate)


def document_requests() -> st.SearchStrategy[Request]:
    """Draw requests that the OpenAPI document allows, and such that it forbids."""
    schema = schemathesis.openapi.from_dict(openapi_document("0"))
    cases = [
        operation.as_strategy(generation_mode=mode)
        for operation in map(_unwrap, schema.get_all_operations())
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    ]
    return st.one_of(cases).map(_to_request)


def _unwrap(result: Any) -> Any:
    return result.ok()


def _to_request(case: Any) -> Request:
    content: bytes | None = None
    if isinstance(case.body, bytes):
        content = case.body
    elif case.media_type is not None:
        content = json.dumps(case.body).encode()
    return Request(case.method, case.formatted_path, content)
