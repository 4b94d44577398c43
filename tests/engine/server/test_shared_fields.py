"""Every field that chats and completions share, through OpenAI's client: what it changes."""

from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.engine.server.conformance import Asker, covers


@pytest.fixture(params=["chat", "completions"])
def ask(client: OpenAI, request: pytest.FixtureRequest) -> Asker:
    return Asker(client, request.param)


def token_of(http: httpx.Client, text: str) -> int:
    (token,) = http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
    return int(token)


def counts(tokens: list[int]) -> int:
    return max(tokens.count(token) for token in tokens)


@covers("sampling.model")
def test_the_model_must_be_the_served_one(ask: Asker) -> None:
    assert ask(model="tiny", max_tokens=1).finish_reason == "length"
    with pytest.raises(openai.NotFoundError):
        ask(model="other")


@covers("sampling.max_tokens", "sampling.ignore_eos", "sampling.min_tokens")
def test_lengths(ask: Asker) -> None:
    end = {"logit_bias": {"1": 100}}

    assert ask(max_tokens=5).usage["completion_tokens"] == 5
    assert ask(**end, max_tokens=5).finish_reason == "length"
    assert len(ask(**end, ignore_eos=False).token_ids) == 1
    assert len(ask(**end, ignore_eos=False, min_tokens=3).token_ids) == 4


@covers("sampling.temperature", "sampling.top_p", "sampling.top_k", "sampling.min_p", "sampling.seed")
def test_draws(ask: Asker) -> None:
    greedy = ask().token_ids

    for narrow in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}):
        assert ask(temperature=2.0, seed=3, **narrow).token_ids == greedy
    drawn = ask(temperature=2.0, seed=3).token_ids
    assert drawn != greedy
    assert ask(temperature=2.0, seed=3).token_ids == drawn
    assert ask(temperature=2.0, seed=4).token_ids != drawn


@covers("sampling.repetition_penalty", "sampling.presence_penalty", "sampling.frequency_penalty")
def test_penalties_spread_the_tokens(ask: Asker) -> None:
    few = {"allowed_token_ids": [70, 71, 72, 73]}
    free = counts(ask(**few).token_ids)

    assert counts(ask(**few, frequency_penalty=2.0).token_ids) < free
    assert ask(**few, presence_penalty=2.0).token_ids != ask(**few).token_ids
    assert ask(**few, repetition_penalty=20.0).token_ids != ask(**few).token_ids


@covers("sampling.logit_bias", "sampling.allowed_token_ids", "sampling.bad_words")
def test_tokens_are_brought_and_ruled_out(ask: Asker, http: httpx.Client) -> None:
    word = token_of(http, " the")

    assert ask(logit_bias={str(word): 100}, max_tokens=3).token_ids == [word] * 3
    assert set(ask(allowed_token_ids=[word, 80]).token_ids) <= {word, 80}
    assert ask(allowed_token_ids=[word, 80], bad_words=["the"], max_tokens=3).token_ids == [80] * 3
    two = ask(allowed_token_ids=[80, 81]).token_ids
    pair = http.post("/detokenize", json={"tokens": two[:2]}).json()["prompt"]
    spelled = http.post("/tokenize", json={"prompt": pair, "add_special_tokens": False}).json()["tokens"]
    without = ask(allowed_token_ids=[80, 81], bad_words=[pair]).token_ids
    assert spelled == two[:2]
    assert all(without[at : at + 2] != spelled for at in range(len(without)))


@covers("sampling.stop", "sampling.include_stop_str_in_output", "sampling.stop_token_ids")
def test_stops(ask: Asker, http: httpx.Client) -> None:
    letters = {"allowed_token_ids": [token_of(http, letter) for letter in "abcd"], "temperature": 1.0, "seed": 2}
    text = ask(**letters).text
    stop = text[7:10]
    end = text.index(stop)

    for form in (stop, ["zzz", stop]):
        stopped = ask(**letters, stop=form)
        assert (stopped.text, stopped.finish_reason, stopped.stop_reason) == (text[:end], "stop", stop)
    assert ask(**letters, stop=stop, include_stop_str_in_output=True).text == text[: end + 3]
    token = token_of(http, text[5])
    stopped = ask(**letters, stop_token_ids=[token])
    assert (stopped.text, stopped.stop_reason) == (text[: text.index(text[5])], token)
    assert stopped.token_ids[-1] == token


@covers("sampling.skip_special_tokens")
def test_special_tokens(ask: Asker) -> None:
    assert ask(logit_bias={"1": 100}, max_tokens=2).text == ""
    assert ask(logit_bias={"1": 100}, max_tokens=2, skip_special_tokens=False).text == "<|end|><|end|>"


@covers("sampling.prompt_logprobs")
def test_prompt_logprobs(ask: Asker) -> None:
    scored = ask(prompt_logprobs=2, max_tokens=1)

    first, *rest = scored.prompt_logprobs
    assert first is None
    assert len(rest) == len(scored.prompt_token_ids) - 1
    for token, entries in zip(scored.prompt_token_ids[1:], rest, strict=True):
        assert 2 <= len(entries) <= 3
        assert entries[str(token)]["logprob"] <= 0
        assert sorted(entry["rank"] for entry in entries.values())[:2] == [1, 2]
        assert set(entries[str(token)]) == {"logprob", "rank", "decoded_token"}
    assert ask(prompt_logprobs=0, max_tokens=1).prompt_logprobs[1].keys() == {str(scored.prompt_token_ids[1])}
    with pytest.raises(openai.BadRequestError, match="prompt_logprobs"):
        ask(prompt_logprobs=1, stream=True)


@covers("sampling.truncate_prompt_tokens", "sampling.return_token_ids")
def test_the_end_of_a_long_prompt_is_kept(ask: Asker) -> None:
    whole = ask(max_tokens=1)
    cut = ask(truncate_prompt_tokens=3, max_tokens=1)

    assert cut.prompt_token_ids == whole.prompt_token_ids[-3:]
    assert cut.usage["prompt_tokens"] == 3
    assert ask(truncate_prompt_tokens=4000, max_tokens=1).prompt_token_ids == whole.prompt_token_ids
    long: Any = {"messages": [{"role": "user", "content": "hello " * 5000}]}
    if ask.endpoint == "completions":
        long = {"prompt": "hello " * 5000}
    assert ask(**long, truncate_prompt_tokens=-1, max_tokens=7).usage["prompt_tokens"] == 4096 - 7
    assert ask(max_tokens=1, return_token_ids=False).token_ids == []


@covers("sampling.return_tokens_as_token_ids")
def test_tokens_can_be_named_by_their_ids(ask: Asker) -> None:
    reply = ask(logprobs=True if ask.endpoint == "chat" else 0, return_tokens_as_token_ids=True, max_tokens=3)

    names = reply.logprobs.get("tokens") or [entry["token"] for entry in reply.logprobs["content"]]
    assert names == [f"token_id:{token}" for token in reply.token_ids]


@covers("sampling.request_id")
def test_a_request_has_the_name_that_the_client_gave(ask: Asker, http: httpx.Client) -> None:
    prefix = "chatcmpl" if ask.endpoint == "chat" else "cmpl"
    path = "/v1/chat/completions" if ask.endpoint == "chat" else "/v1/completions"
    body: Any = {"messages": [{"role": "user", "content": "x"}]} if ask.endpoint == "chat" else {"prompt": "x"}

    assert ask(request_id="order-17", max_tokens=1).id == f"{prefix}-order-17"
    named = http.post(path, json={**body, "max_tokens": 1}, headers={"X-Request-Id": "a/b"})
    assert (named.json()["id"], named.headers["x-request-id"]) == (f"{prefix}-a/b", "a/b")
    unnamed = http.post(path, json={**body, "max_tokens": 1})
    assert unnamed.json()["id"] == f"{prefix}-{unnamed.headers['x-request-id']}"
    wrong = http.post(path, json={**body, "temperature": -1, "request_id": "c"})
    assert (wrong.status_code, wrong.headers["x-request-id"]) == (400, "c")
    for headers, fields in (({"X-Request-Id": "a"}, {"request_id": "b"}), ({}, {"request_id": "a b"})):
        refused = http.post(path, json={**body, **fields}, headers=headers)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "request_id")
    assert http.post(path, json=body, headers={"X-Request-Id": "x" * 129}).json()["error"]["param"] == "X-Request-Id"


@covers("sampling.stream", "sampling.stream_options", "options.include_usage", "options.continuous_usage_stats")
def test_a_stream_says_what_the_body_says(ask: Asker) -> None:
    scores = {"logprobs": True, "top_logprobs": 3} if ask.endpoint == "chat" else {"logprobs": 3}
    whole = ask(**scores, max_tokens=40)
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = ask(**scores, max_tokens=40, stream=True, stream_options=options)

    assert stream.text == whole.text
    assert stream.token_ids == whole.token_ids
    assert stream.prompt_token_ids == whole.prompt_token_ids
    assert stream.logprobs == whole.logprobs
    assert stream.usage == whole.usage
    assert [chunk["usage"]["completion_tokens"] for chunk in stream.chunks][-3:] == [39, 40, 40]
    plain = ask(max_tokens=5, stream=True)
    assert plain.usage == {}
    assert not any("prompt_token_ids" in chunk for chunk in plain.chunks[1:])


@covers("sampling.user")
def test_a_user_is_a_label_and_changes_nothing(ask: Asker) -> None:
    assert ask(user="someone").token_ids == ask().token_ids
