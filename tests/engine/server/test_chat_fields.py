"""The fields that only chats have, and those of `/tokenize` and `/detokenize`: what each changes."""

from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.engine.server.conformance import Asker, covers

HELLO = {"role": "user", "content": "hello"}
BEGUN = {"role": "assistant", "content": "once upon"}


@pytest.fixture
def ask(client: OpenAI) -> Asker:
    return Asker(client, "chat")


def rendered(http: httpx.Client, **fields: Any) -> str:
    tokens = http.post("/tokenize", json={"messages": [HELLO], **fields}).json()["tokens"]
    return str(http.post("/detokenize", json={"tokens": tokens}).json()["prompt"])


@covers("chat.messages", "message.role", "message.content", "message.name")
def test_messages_make_the_prompt(ask: Asker, http: httpx.Client) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "system", "content": "be short"}, {"role": "user", "name": "ann", "content": parts}]

    reply = ask(messages=messages, max_tokens=1)

    text = http.post("/detokenize", json={"tokens": reply.prompt_token_ids}).json()["prompt"]
    assert text == "<|begin|><|system|>be short<|end|><|user|>a\nb<|end|><|assistant|>"


@covers("chat.max_completion_tokens")
def test_the_new_name_of_the_limit(ask: Asker) -> None:
    assert ask(max_tokens=None, max_completion_tokens=3).usage["completion_tokens"] == 3


@covers("chat.logprobs", "chat.top_logprobs")
def test_logprobs_of_a_chat(ask: Asker, http: httpx.Client) -> None:
    reply = ask(logprobs=True, top_logprobs=4)

    content = reply.logprobs["content"]
    assert len(content) == len(reply.token_ids) == reply.usage["completion_tokens"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode(errors="replace") == reply.text
    for entry in content:
        best = entry["top_logprobs"]
        assert [other["logprob"] for other in best] == sorted((o["logprob"] for o in best), reverse=True)
        assert (best[0]["token"], best[0]["logprob"]) == (entry["token"], entry["logprob"]), "greedy takes the best"
        assert len(best) == 4
    assert all(entry["top_logprobs"] == [] for entry in ask(logprobs=True, top_logprobs=0).logprobs["content"])
    assert ask().logprobs == {}
    assert ask(logprobs=False).logprobs == {}


def test_an_end_token_and_a_stop_string_have_scores_as_every_counted_token(ask: Asker) -> None:
    ended = ask(logprobs=True, ignore_eos=False, logit_bias={"1": 100})
    letters = {"allowed_token_ids": list(range(70, 80)), "logprobs": True}
    stopped = ask(**letters, stop=ask(**letters).text[4:6])

    assert [entry["token"] for entry in ended.logprobs["content"]] == ["<|end|>"]
    assert ended.logprobs["content"][0]["logprob"] < 0, "the model's own, and not the bias's"
    assert len(stopped.logprobs["content"]) == stopped.usage["completion_tokens"] > 0


@covers("chat.add_generation_prompt", "chat.continue_final_message", "chat.echo")
def test_the_last_message_is_continued(ask: Asker, http: httpx.Client) -> None:
    messages = [HELLO, BEGUN]
    open_prompt = "<|begin|><|user|>hello<|end|><|assistant|>once upon"

    assert rendered(http, messages=messages, continue_final_message=True) == open_prompt
    assert rendered(http, messages=messages).endswith("once upon<|end|><|assistant|>")
    assert rendered(http, messages=messages, add_generation_prompt=False).endswith("once upon<|end|>")
    continued = ask(messages=messages, continue_final_message=True)
    tokens = http.post("/tokenize", json={"messages": messages, "continue_final_message": True}).json()["tokens"]
    assert continued.prompt_token_ids == tokens
    for stream in (False, True):
        echoed = ask(messages=messages, continue_final_message=True, echo=True, stream=stream)
        assert echoed.text == "once upon" + continued.text
    for fields, parameter in (
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"continue_final_message": True, "messages": [HELLO, {**BEGUN, "content": " "}]}, "continue_final_message"),
        ({"echo": True, "messages": [HELLO]}, "echo"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(**{"messages": messages, **fields})
        assert caught.value.param == parameter


@covers("chat.add_special_tokens")
def test_a_begin_token_is_added_on_request(ask: Asker) -> None:
    assert ask(max_tokens=1).prompt_token_ids[:2].count(0) == 1
    assert ask(max_tokens=1, add_special_tokens=True).prompt_token_ids[:2] == [0, 0]


@covers("chat.chat_template_kwargs", "chat.chat_template")
def test_a_template_gets_variables_and_is_the_models_own(ask: Asker, http: httpx.Client) -> None:
    assert rendered(http, chat_template_kwargs={"preamble": "Hi. "}).startswith("<|begin|>Hi. <|user|>")
    reply = ask(chat_template_kwargs={"preamble": "Hi. "}, max_tokens=1)
    assert reply.usage["prompt_tokens"] > ask(max_tokens=1).usage["prompt_tokens"]
    with pytest.raises(openai.BadRequestError, match="--trust-request-chat-template") as caught:
        ask(chat_template="{{ 1 }}")
    assert caught.value.param == "chat_template"


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 4097}, "truncate_prompt_tokens"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [512]}, "allowed_token_ids"),
        ({"allowed_token_ids": [1], "min_tokens": 1}, "allowed_token_ids"),
        ({"stop_token_ids": list(range(512)), "min_tokens": 1}, "min_tokens"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"bad_words": ["x"] * 513}, "bad_words"),
        ({"repetition_penalty": 1e-30}, "repetition_penalty"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"store": True}, "store"),
        ({"metadata": {"a": "b"}}, "metadata"),
    ],
)
def test_refusals_name_the_field(ask: Asker, fields: dict[str, Any], parameter: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(**fields)

    assert caught.value.param == parameter or caught.value.param == "top_logprobs"
    assert "Traceback" not in str(caught.value)


def test_a_refusal_says_what_would_work(ask: Asker) -> None:
    with pytest.raises(openai.BadRequestError, match=r'leave it out or send \{"type":"text"\}'):
        ask(response_format={"type": "json_object"})


@covers(
    "tokenize.model",
    "tokenize.prompt",
    "tokenize.messages",
    "tokenize.add_special_tokens",
    "tokenize.add_generation_prompt",
    "tokenize.continue_final_message",
    "tokenize.chat_template",
    "tokenize.chat_template_kwargs",
    "tokenize.return_token_strs",
    "detokenize.model",
    "detokenize.tokens",
)
def test_tokens(http: httpx.Client) -> None:
    def tokens(**fields: Any) -> Any:
        return http.post("/tokenize", json=fields).json()["tokens"]

    assert tokens(prompt="hi")[0] == 0
    assert tokens(prompt="hi", add_special_tokens=False) == tokens(prompt="hi", model="tiny")[1:]
    chat = tokens(messages=[HELLO])
    assert tokens(messages=[HELLO], add_generation_prompt=False) == chat[:-1]
    assert tokens(messages=[HELLO], add_special_tokens=True) == [0, *chat]
    assert tokens(messages=[HELLO], continue_final_message=True) == chat[:-2]
    assert len(tokens(messages=[HELLO], chat_template_kwargs={"preamble": "x"})) > len(chat)
    spelled = http.post("/tokenize", json={"prompt": "hi", "return_token_strs": True}).json()["token_strs"]
    assert spelled[0] == "<|begin|>"
    assert http.post("/detokenize", json={"tokens": chat, "model": "tiny"}).json() == {"prompt": rendered(http)}
    for path, body, status in (
        ("/tokenize", {"messages": [HELLO], "chat_template": "x"}, 400),
        ("/tokenize", {"prompt": "x", "model": "other"}, 404),
        ("/detokenize", {"tokens": [], "model": "other"}, 404),
        ("/detokenize", {"tokens": [-1]}, 400),
    ):
        assert http.post(path, json=body).status_code == status
