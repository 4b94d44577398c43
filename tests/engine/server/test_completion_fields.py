"""The fields that only text completions have: what each changes."""

from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.engine.server.conformance import PROMPT, Asker, covers


@pytest.fixture
def ask(client: OpenAI) -> Asker:
    return Asker(client, "completions")


@covers("completions.prompt", "completions.add_special_tokens")
def test_prompts(ask: Asker) -> None:
    with_begin = ask(max_tokens=1).prompt_token_ids

    assert with_begin[0] == 0
    assert ask(max_tokens=1, add_special_tokens=False).prompt_token_ids == with_begin[1:]
    assert ask(max_tokens=1, prompt=with_begin).prompt_token_ids == with_begin
    assert ask(prompt=[PROMPT]).text == ask(prompt=[with_begin]).text == ask().text


@covers("completions.logprobs")
@pytest.mark.parametrize("top", [0, 1, 5])
def test_logprobs_of_a_completion(ask: Asker, top: int) -> None:
    reply = ask(logprobs=top, temperature=1.0, seed=1, max_tokens=60)

    scores = reply.logprobs
    count = reply.usage["completion_tokens"]
    assert [len(scores[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [count] * 4
    for token, logprob, best in zip(scores["tokens"], scores["token_logprobs"], scores["top_logprobs"], strict=True):
        assert best[token] == logprob
        assert max(1, top) <= len(best) <= top + 1
    assert_offsets(scores, reply.text)


def assert_offsets(scores: dict[str, list[Any]], text: str) -> None:
    offsets = scores["text_offset"]
    assert offsets == sorted(offsets)
    for token, offset, after in zip(scores["tokens"], offsets, [*offsets[1:], len(text)], strict=True):
        if not token.startswith(("bytes:", "<|")):
            assert text[offset:after].replace("\ufffd", "") == token
    if not any(token.startswith("<|") for token in scores["tokens"]):
        assert text_of(scores["tokens"]) == text


def text_of(names: list[str]) -> str:
    """Put a text together from token names."""
    content = b""
    for name in names:
        content += bytes.fromhex(name[6:].replace("\\x", "")) if name.startswith("bytes:") else name.encode()
    return content.decode(errors="replace")


@covers("completions.echo")
@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_puts_the_prompt_in_front(ask: Asker, stream: bool) -> None:
    prompt = "naïve 你好 🦀 the"
    plain = ask(prompt=prompt, logprobs=2)
    echoed = ask(prompt=prompt, logprobs=2, echo=True, stream=stream)

    assert echoed.text == prompt + plain.text
    assert echoed.token_ids == plain.token_ids
    assert echoed.usage == plain.usage or stream
    scores = echoed.logprobs
    assert (scores["token_logprobs"][0], scores["top_logprobs"][0]) == (None, None)
    assert len(scores["tokens"]) == len(plain.prompt_token_ids) + len(plain.token_ids)
    assert scores["token_logprobs"][-len(plain.token_ids) :] == pytest.approx(plain.logprobs["token_logprobs"])
    assert_offsets(scores, echoed.text)


def test_an_echo_scores_a_text_as_generating_it_did(ask: Asker) -> None:
    """How evaluation harnesses measure a likelihood: the text as a prompt, with no token generated."""
    written = ask(logprobs=1, max_tokens=30)
    whole = [*written.prompt_token_ids, *written.token_ids]

    for stream in (False, True):
        read = ask(prompt=whole, echo=True, max_tokens=0, logprobs=1, stream=stream)
        assert read.text == PROMPT + written.text
        assert read.finish_reason == "length"
        assert read.token_ids == []
        assert read.logprobs["token_logprobs"][-30:] == pytest.approx(written.logprobs["token_logprobs"], abs=1e-4)
        assert read.logprobs["top_logprobs"][-1].keys() == written.logprobs["top_logprobs"][-1].keys()
    assert ask(prompt=whole, echo=True, max_tokens=0).usage["completion_tokens"] == 0


def test_stop_strings_look_at_the_output_alone(ask: Asker) -> None:
    letters = {"allowed_token_ids": list(range(70, 90)), "prompt": "stop here"}

    echoed = ask(**letters, echo=True, stop="stop")

    assert echoed.text == "stop here" + ask(**letters).text


def test_a_character_begun_by_the_prompt_is_completed(ask: Asker, http: httpx.Client) -> None:
    tokens = http.post("/tokenize", json={"prompt": "🦀", "add_special_tokens": False}).json()["tokens"]
    forced = {"allowed_token_ids": tokens[-1:], "max_tokens": 1}

    assert ask(prompt=[0, *tokens[:-1]], **forced).text == "🦀"
    assert ask(prompt=[0, *tokens[:-1]], **forced, echo=True).text == "🦀"


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"suffix": "x"}, "suffix"),
        ({"prompt": ""}, None),
    ],
)
def test_refusals(ask: Asker, fields: dict[str, Any], parameter: str | None) -> None:
    if parameter is None:  # the begin token alone is a prompt
        assert ask(**fields).usage["prompt_tokens"] == 1
        fields, parameter = {**fields, "add_special_tokens": False}, "prompt"
    with pytest.raises(openai.BadRequestError) as caught:
        ask(**fields)
    assert caught.value.param == parameter
