import json
from typing import Any

import pytest

from pagefleet.engine.errors import RequestRefused
from pagefleet.engine.server.parse import parse_request
from pagefleet.engine.server.protocol import ChatRequest, CompletionRequest, StrictModel, TokenizeRequest
from pagefleet.engine.server.unsupported import UNSUPPORTED

MESSAGES = [{"role": "user", "content": "hi"}]


def refusal(kind: type[StrictModel], body: Any) -> RequestRefused:
    with pytest.raises(RequestRefused) as caught:
        parse_request(kind, body if isinstance(body, bytes) else json.dumps(body).encode())
    return caught.value


def chat(**fields: Any) -> ChatRequest:
    return parse_request(ChatRequest, json.dumps({"messages": MESSAGES, **fields}).encode())


@pytest.mark.parametrize(
    ("fields", "parameter", "code"),
    [
        ({"temperature": "1"}, "temperature", "invalid_value"),
        ({"temperature": True}, "temperature", "invalid_value"),
        ({"max_tokens": 1.0}, "max_tokens", "invalid_value"),
        ({"max_tokens": True}, "max_tokens", "invalid_value"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens", "invalid_value"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"stop": ""}, "stop", "invalid_value"),
        ({"stop": ["a", ""]}, "stop", "invalid_value"),
        ({"stop": ["a"] * 17}, "stop", "invalid_value"),
        ({"stop": ["a", 1]}, "stop[1]", "invalid_value"),
        ({"stop": 1}, "stop", "invalid_value"),
        ({"stop_token_ids": ["1"]}, "stop_token_ids[0]", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown_parameter"),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
            "invalid_value",
        ),
        ({"bogus": 1}, "bogus", "unknown_parameter"),
        ({"bogus": None}, "bogus", "unknown_parameter"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": "hi"}, "messages", "invalid_value"),
        ({"messages": ["hi"]}, "messages[0]", "invalid_value"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "invalid_value"),
        ({"messages": [{"role": "user", "content": "x", "y": 1}]}, "messages[0].y", "unknown_parameter"),
        (
            {"messages": [*MESSAGES, {"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]},
            "messages[1].tool_calls",
            "unsupported_parameter",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]", "invalid_value"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], parameter: str, code: str) -> None:
    error = refusal(ChatRequest, {"messages": MESSAGES, **fields})

    assert (error.parameter, error.code) == (parameter, code)
    assert parameter in str(error)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"a": "\xff"}', b'{"seed": NaN}', b'{"a": "\\ud800"}', b"\x00"]
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    assert refusal(ChatRequest, body).code == "invalid_json"


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_field_is_refused_by_name_unless_it_asks_for_nothing(name: str) -> None:
    for off in UNSUPPORTED[name]:
        chat(**{name: off})

    error = refusal(ChatRequest, {"messages": MESSAGES, name: {"on": [1]}})

    assert (error.parameter, error.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    ("name", "value"),
    [("n", 0), ("n", True), ("logprobs", True), ("logprobs", 6), ("top_logprobs", 3), ("echo", 1), ("best_of", 3)],
)
def test_values_near_the_off_ones_are_refused(name: str, value: Any) -> None:
    assert refusal(CompletionRequest, {"prompt": "x", name: value}).parameter == name


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("hi", ["hi"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]), ("", [""])],
)
def test_all_forms_of_a_prompt(prompt: Any, prompts: Any) -> None:
    assert parse_request(CompletionRequest, json.dumps({"prompt": prompt}).encode()).prompt == prompts


@pytest.mark.parametrize("prompt", [[], [[]], ["a", 1], [1, "a"], [True], 1, True, {}, [[1], "a"], ["a"] * 1025, [1.5]])
def test_other_prompts_are_refused(prompt: Any) -> None:
    assert refusal(CompletionRequest, {"prompt": prompt}).parameter == "prompt"


def test_null_means_not_given() -> None:
    names = [name for name in ChatRequest.model_fields if name != "messages"]

    assert chat(**dict.fromkeys(names)) == chat()
    assert chat(add_generation_prompt=None).begins_answer


def test_text_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert chat(messages=[{"role": "user", "content": parts}]).messages[0].content == "a\nb"


def test_an_answer_of_openais_client_can_be_sent_back() -> None:
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "tool_calls": None,
        "annotations": [],
    }

    assert chat(messages=[*MESSAGES, answer]).messages[1].to_template() == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize("fields", [{}, {"prompt": "x", "messages": MESSAGES}])
def test_tokenize_takes_one_input(fields: dict[str, Any]) -> None:
    assert refusal(TokenizeRequest, fields).parameter == "prompt"
