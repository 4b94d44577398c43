"""What goes over the wire, byte for byte: streams, errors, headers."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.support.engine_server import EngineServer

CHAT = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 4, "ignore_eos": True}
COMPLETION = {"prompt": "hi", "temperature": 0, "max_tokens": 4, "ignore_eos": True}


def events(body: bytes) -> list[Any]:
    """Split a stream strictly: every event is one data line and one empty line."""
    assert body.endswith(b"\n\n")
    lines = body[:-2].split(b"\n\n")
    assert all(line.startswith(b"data: ") and b"\n" not in line for line in lines)
    return [line[6:].decode() if line == b"data: [DONE]" else json.loads(line[6:]) for line in lines]


def test_a_chat_stream_byte_for_byte(http: httpx.Client) -> None:
    response = http.post(
        "/v1/chat/completions", json={**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    )

    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    *chunks, usage, done = events(response.content)
    assert done == "[DONE]"
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in [*chunks, usage]}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert chunks[0]["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert len(chunks) == 1 + 4, "one piece per token after the role"
    assert all(set(chunk["choices"][0]["delta"]) == {"content"} for chunk in chunks[1:])
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["length"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4


def test_without_include_usage_no_chunk_speaks_of_it(http: httpx.Client) -> None:
    *chunks, done = events(http.post("/v1/completions", json={**COMPLETION, "stream": True}).content)

    assert done == "[DONE]"
    assert len(chunks) == 4
    assert all("usage" not in chunk for chunk in chunks)
    assert all(set(chunk["choices"][0]) >= {"index", "text", "logprobs", "finish_reason"} for chunk in chunks)


def assert_error(response: httpx.Response, status: int, parameter: str | None, code: str | None) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["param"], error["code"]) == (parameter, code), error
    assert "Traceback" not in error["message"]
    return str(error["message"])


@pytest.mark.parametrize(
    ("fields", "parameter", "code"),
    [
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"temperature": 2.1}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"top_p": 1.1}, "top_p", "invalid_value"),
        ({"top_k": -2}, "top_k", "invalid_value"),
        ({"top_k": -(2**80)}, "top_k", "invalid_value"),
        ({"min_p": 2}, "min_p", "invalid_value"),
        ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
        ({"presence_penalty": 3}, "presence_penalty", "invalid_value"),
        ({"frequency_penalty": -3}, "frequency_penalty", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": -1}, "max_tokens", "invalid_value"),
        ({"max_tokens": 2**70}, "messages", "context_length_exceeded"),
        ({"min_tokens": 5}, "min_tokens", "invalid_value"),
        ({"min_tokens": -1}, "min_tokens", "invalid_value"),
        ({"logit_bias": {"512": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"9" * 30: 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "invalid_value"),
        ({"stop_token_ids": [512]}, "stop_token_ids", "invalid_value"),
        ({"stop_token_ids": [2**70]}, "stop_token_ids", "invalid_value"),
        ({"bogus": 1}, "bogus", "unknown_parameter"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs", "invalid_value"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs", "invalid_value"),
    ],
)
def test_wrong_values_get_400(http: httpx.Client, fields: dict[str, Any], parameter: str, code: str) -> None:
    for stream in (False, True):
        response = http.post("/v1/chat/completions", json={**CHAT, **fields, "stream": stream})
        assert parameter in assert_error(response, 400, parameter, code) or code == "context_length_exceeded"


@pytest.mark.parametrize("top_k", [-1, 0, 1, 512, 2**70])
def test_every_top_k_that_means_something_works(http: httpx.Client, top_k: int) -> None:
    assert http.post("/v1/chat/completions", json={**CHAT, "top_k": top_k}).status_code == 200


@pytest.mark.parametrize("prompt", [[512], [-1], [[0], [2**70]]])
def test_tokens_outside_the_vocabulary_get_400(http: httpx.Client, prompt: Any) -> None:
    assert "0 to 511" in assert_error(
        http.post("/v1/completions", json={**COMPLETION, "prompt": prompt}), 400, "prompt", "invalid_value"
    )
    assert_error(http.post("/detokenize", json={"tokens": [2**70]}), 400, "tokens", "invalid_value")


def test_too_long_says_what_would_fit(http: httpx.Client) -> None:
    message = assert_error(
        http.post("/v1/completions", json={"prompt": [5] * 4000, "max_tokens": 200}),
        400,
        "prompt",
        "context_length_exceeded",
    )
    assert "maximum context length is 4096" in message
    assert "max_tokens 96 would fit" in message
    assert http.post("/v1/completions", json={"prompt": [5] * 4094, "max_tokens": 2}).status_code == 200
    assert http.post("/v1/completions", json={"prompt": [5] * 4094}).json()["usage"]["completion_tokens"] <= 2
    assert_error(http.post("/v1/completions", json={"prompt": [5] * 4096}), 400, "prompt", "context_length_exceeded")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"prompt": "\xff\xfe"}', b"\x00" * 10])
def test_bad_bodies_get_400(http: httpx.Client, body: bytes) -> None:
    response = http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert_error(response, 400, None, "invalid_json")


def test_other_content_and_huge_bodies_are_refused(http: httpx.Client) -> None:
    form = http.post("/v1/completions", content=b"prompt=x", headers={"content-type": "text/plain"})
    assert_error(form, 415, None, "unsupported_media_type")
    assert_error(http.post("/v1/completions", json={"prompt": "x" * (17 * 2**20)}), 413, None, "body_too_large")


def test_routing_errors_have_the_shape_too(http: httpx.Client) -> None:
    assert_error(http.get("/v1/nothing"), 404, None, "not_found")
    assert_error(http.get("/v1/completions"), 405, None, "method_not_allowed")
    assert http.get("/v1/completions").headers["allow"] == "POST"
    assert_error(http.get("/docs"), 404, None, "not_found")


def test_an_unknown_model_is_404_and_names_the_served_one(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="other", prompt="x")

    assert caught.value.code == "model_not_found"
    assert "tiny" in str(caught.value)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_text_of_any_script_comes_back_unbroken(http: httpx.Client) -> None:
    body = {**COMPLETION, "max_tokens": 200, "stream": True}
    whole = http.post("/v1/completions", json={**body, "stream": False}).json()["choices"][0]["text"]
    *chunks, _done = events(http.post("/v1/completions", json=body).content)

    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole


def test_the_engine_outlives_all_of_it(http: httpx.Client) -> None:
    assert http.get("/health").status_code == 200
    assert http.post("/v1/completions", json=COMPLETION).status_code == 200
    assert http.get("/version").json().keys() == {"version"}


def test_a_huge_prompt_does_not_hold_up_others(engine: EngineServer, http: httpx.Client) -> None:
    huge = {"prompt": "the quick brown fox " * 100_000}
    with ThreadPoolExecutor(1) as pool:
        began_s = time.monotonic()
        refused = pool.submit(httpx.post, f"{engine.url}/v1/completions", json=huge, timeout=60)
        slowest_s = 0.0
        while not refused.done():
            asked_s = time.monotonic()
            http.get("/health")
            slowest_s = max(slowest_s, time.monotonic() - asked_s)

    assert_error(refused.result(), 400, "prompt", "context_length_exceeded")
    assert slowest_s < (time.monotonic() - began_s) / 2
