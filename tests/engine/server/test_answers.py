"""Answers through OpenAI's own client: texts, ends, usage, and that a stream says what a body says."""

from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.engine.server.conformance import covers

GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0}
MESSAGES: Any = [{"role": "user", "content": "hello there"}]


def greedy_completion(client: OpenAI, **fields: Any) -> Any:
    fields = {"prompt": "once upon a time", "max_tokens": 40, "extra_body": {"ignore_eos": True}, **GREEDY, **fields}
    return client.completions.create(**fields)


def test_a_chat_answer_is_whole(client: OpenAI) -> None:
    answer = client.chat.completions.create(messages=MESSAGES, max_tokens=7, extra_body={"ignore_eos": True}, **GREEDY)

    assert answer.object == "chat.completion"
    assert answer.model == "tiny"
    assert answer.id.startswith("chatcmpl-")
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "length", "assistant")
    assert choice.message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 7
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 7
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_the_begin_token_stands_once(client: OpenAI, http: httpx.Client) -> None:
    tokens = http.post("/tokenize", json={"messages": MESSAGES}).json()["tokens"]
    answer = client.chat.completions.create(messages=MESSAGES, max_tokens=1, **GREEDY)

    assert tokens.count(0) == 1
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(tokens)


async def test_a_chat_stream_says_what_the_body_says(async_client: AsyncOpenAI) -> None:
    fields: dict[str, Any] = {**GREEDY, "messages": MESSAGES, "max_tokens": 60, "extra_body": {"ignore_eos": True}}
    whole = await async_client.chat.completions.create(**fields)
    stream = await async_client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **fields)
    chunks = [chunk async for chunk in stream]

    *pieces, last = chunks
    assert pieces[0].choices[0].delta.role == "assistant"
    assert pieces[0].choices[0].delta.content == ""
    assert all(piece.choices[0].delta.role is None for piece in pieces[1:])
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole.choices[0].message.content
    assert [piece.choices[0].finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].choices[0].finish_reason == "length"
    assert last.choices == []
    assert last.usage == whole.usage


@covers("sampling.cache_salt")
def test_cached_prompt_tokens_are_told_in_body_and_stream(client: OpenAI) -> None:
    def ask(salt: str, **fields: Any) -> Any:
        extra = {"ignore_eos": True, "cache_salt": salt}
        return client.completions.create(prompt=list(range(5, 75)), max_tokens=3, extra_body=extra, **GREEDY, **fields)

    def stream(salt: str) -> Any:
        *_, last = ask(salt, stream=True, stream_options={"include_usage": True})
        return last.usage

    # 70 tokens are four full blocks of 16 and a rest; with another salt nothing is shared.
    for usage, cached in ((ask("a").usage, 0), (ask("a").usage, 64), (stream("a"), 64), (stream("b"), 0)):
        assert usage.prompt_tokens == 70
        assert usage.prompt_tokens_details.cached_tokens == cached


def test_an_empty_cache_salt_is_refused(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"prompt": "x", "cache_salt": ""})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "cache_salt"


def test_completions_default_to_sixteen_tokens(client: OpenAI) -> None:
    answer = client.completions.create(prompt="once", extra_body={"ignore_eos": True}, **GREEDY)

    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_several_prompts_become_choices_in_order(client: OpenAI) -> None:
    prompts = ["once upon", "the quick brown", "hello"]
    alone = [greedy_completion(client, prompt=prompt) for prompt in prompts]
    together = greedy_completion(client, prompt=prompts)
    stream = greedy_completion(client, prompt=prompts, stream=True)

    texts = [answer.choices[0].text for answer in alone]
    assert [choice.text for choice in together.choices] == texts
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    assert together.usage.completion_tokens == 120
    assert together.usage.prompt_tokens == sum(answer.usage.prompt_tokens for answer in alone)
    streamed, ends = ["", "", ""], []
    for chunk in stream:
        (choice,) = chunk.choices
        streamed[choice.index] += choice.text
        if choice.finish_reason is not None:
            ends.append((choice.index, choice.finish_reason))
    assert streamed == texts
    assert sorted(ends) == [(0, "length"), (1, "length"), (2, "length")]


def test_token_prompts_continue_as_texts_do(client: OpenAI, http: httpx.Client) -> None:
    tokens = http.post("/tokenize", json={"prompt": "once upon a time"}).json()["tokens"]
    text = greedy_completion(client)

    assert greedy_completion(client, prompt=tokens).choices[0].text == text.choices[0].text
    assert [choice.text for choice in greedy_completion(client, prompt=[tokens, tokens]).choices] == [
        text.choices[0].text
    ] * 2


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_stop_string_ends_text_and_usage_alike(client: OpenAI, include: bool, length: int) -> None:
    stream = list(greedy_completion(client, stream=True))
    text = "".join(chunk.choices[0].text for chunk in stream)
    position = next(at for at in range(len(text) // 2, len(text)) if "\ufffd" not in text[at : at + length])
    stop = text[position : position + length]
    end = text.index(stop)
    extra = {"ignore_eos": True, "include_stop_str_in_output": include}

    whole = greedy_completion(client, stop=stop, extra_body=extra)
    chunks = list(
        greedy_completion(client, stop=[stop], stream=True, stream_options={"include_usage": True}, extra_body=extra)
    )

    expected = text[: end + len(stop) if include else end]
    assert whole.choices[0].text == expected
    assert whole.choices[0].finish_reason == "stop"
    assert whole.choices[0].stop_reason == stop
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == expected
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage == whole.usage
    # The tokens up to the one that completes the stop string: one fewer does not hold it yet.
    count = whole.usage.completion_tokens
    shorter = greedy_completion(client, max_tokens=count - 1) if count > 1 else None
    assert stop in greedy_completion(client, max_tokens=count).choices[0].text
    assert shorter is None or stop not in shorter.choices[0].text


def test_min_tokens_puts_off_a_stop_string(client: OpenAI) -> None:
    text = greedy_completion(client).choices[0].text
    stop = next(character for character in text if character != "\ufffd")

    answer = greedy_completion(client, stop=stop, extra_body={"ignore_eos": True, "min_tokens": 20})

    assert answer.usage.completion_tokens > 20 or answer.choices[0].finish_reason == "length"


def test_a_stop_token_ends_silently(client: OpenAI, http: httpx.Client) -> None:
    free = greedy_completion(client)
    biased = {"ignore_eos": True, "stop_token_ids": [70], "logit_bias": {"70": 100}}

    answer = greedy_completion(client, extra_body=biased)

    assert free.choices[0].finish_reason == "length"
    assert answer.choices[0].text == ""
    assert (answer.choices[0].finish_reason, answer.choices[0].stop_reason) == ("stop", 70)
    assert answer.usage.completion_tokens == 1


def test_an_end_token_ends_and_is_no_text(client: OpenAI) -> None:
    answer = greedy_completion(client, extra_body={"logit_bias": {"1": 100}, "min_tokens": 3})

    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].stop_reason is None
    assert answer.usage.completion_tokens == 4
    assert "<|end|>" not in answer.choices[0].text


def test_special_tokens_are_text_on_request(client: OpenAI) -> None:
    extra = {"ignore_eos": True, "logit_bias": {"1": 100}}

    hidden = greedy_completion(client, max_tokens=2, extra_body=extra)
    shown = greedy_completion(client, max_tokens=2, extra_body={**extra, "skip_special_tokens": False})

    assert hidden.choices[0].text == ""
    assert shown.choices[0].text == "<|end|><|end|>"


def test_a_seed_makes_draws_reproducible(client: OpenAI) -> None:
    def draw(seed: int) -> str:
        return str(greedy_completion(client, temperature=1.5, seed=seed, max_tokens=30).choices[0].text)

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_a_chat_may_use_the_whole_context(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        messages=MESSAGES, extra_body={"logit_bias": {"1": 50}, "min_tokens": 2}, **GREEDY
    )

    assert answer.choices[0].finish_reason == "stop"


def test_continuous_usage_counts_up(client: OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(greedy_completion(client, max_tokens=5, stream=True, stream_options=options))

    assert [chunk.usage.completion_tokens for chunk in chunks] == [1, 2, 3, 4, 5, 5]


def test_models_are_listed(client: OpenAI) -> None:
    (card,) = client.models.list().data

    assert card.id == "tiny"
    assert client.models.retrieve("tiny") == card


def test_tokenize_and_detokenize_are_inverse(http: httpx.Client) -> None:
    text = "naïve 你好 🦀"
    tokens = http.post(
        "/tokenize", json={"prompt": text, "add_special_tokens": False, "return_token_strs": True}
    ).json()

    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
    assert tokens["max_model_len"] == 4096
    assert http.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": text}
