"""`n` over HTTP: choices with their own ends, one prompt in the usage, and equality with single requests."""

from collections import defaultdict
from typing import Any

import httpx
from openai import OpenAI

from tests.engine.server.conformance import covers
from tests.support.engine_server import EngineServer

FIELDS: dict[str, Any] = {"model": "tiny", "prompt": list(range(5, 45)), "max_tokens": 9, "temperature": 1.5}
EXTRA = {"ignore_eos": True}
MESSAGES: Any = [{"role": "user", "content": "hello there"}]


@covers("sampling.n")
def test_choices_equal_requests_with_their_seeds(client: OpenAI) -> None:
    many = client.completions.create(n=3, seed=20, extra_body=EXTRA, **FIELDS)
    single = [client.completions.create(seed=20 + index, extra_body=EXTRA, **FIELDS) for index in range(3)]
    assert [choice.index for choice in many.choices] == [0, 1, 2]
    assert [choice.text for choice in many.choices] == [answer.choices[0].text for answer in single]
    assert len({choice.text for choice in many.choices}) == 3
    assert many.usage is not None
    assert (many.usage.prompt_tokens, many.usage.completion_tokens, many.usage.total_tokens) == (40, 27, 67)


def test_several_prompts_of_several_choices(client: OpenAI) -> None:
    fields = {**FIELDS, "prompt": [[5, 6, 7], [8, 9, 10, 11]], "seed": 3}
    many = client.completions.create(n=2, extra_body=EXTRA, **fields)
    alone = client.completions.create(n=2, extra_body=EXTRA, **{**fields, "prompt": [8, 9, 10, 11]})
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in many.choices[2:]] == [choice.text for choice in alone.choices]
    assert many.usage is not None
    assert (many.usage.prompt_tokens, many.usage.completion_tokens) == (7, 36)


def test_a_stream_ends_each_choice_and_says_the_same(client: OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "n": 3, "seed": 7}
    whole = client.chat.completions.create(extra_body=EXTRA, **fields)
    texts: dict[int, str] = defaultdict(str)
    ends: dict[int, list[str]] = defaultdict(list)
    usage = None
    for chunk in client.chat.completions.create(
        stream=True, stream_options={"include_usage": True}, extra_body=EXTRA, **fields
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] += [choice.finish_reason] if choice.finish_reason else []
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert ends == {0: ["length"], 1: ["length"], 2: ["length"]}
    assert usage is not None
    assert whole.usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, 24)


def test_a_stop_string_ends_one_choice_alone(client: OpenAI, engine: EngineServer) -> None:
    fields = {**FIELDS, "max_tokens": 30, "seed": 20}
    plain = client.completions.create(n=3, extra_body=EXTRA, **fields)
    stop = plain.choices[1].text[3:6]
    cut = client.completions.create(n=3, stop=[stop], extra_body=EXTRA, **fields)
    assert cut.choices[1].finish_reason == "stop"
    for before, after in zip(plain.choices, cut.choices, strict=True):
        assert after.text == before.text.split(stop)[0]
    engine.wait_capacity(in_flight=0, running=0, blocks_active=0)


@covers("sampling.priority")
def test_a_priority_needs_an_engine_that_ranks_by_it(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1, "priority": 3})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "priority"
    assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1, "priority": 0}).status_code == 200


def test_more_choices_than_the_engine_runs_are_refused(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"prompt": "x", "n": 129})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "n"
    assert "use n of at most 128" in answer.json()["error"]["message"]
    assert http.post("/v1/completions", json={"prompt": "x", "n": 0}).status_code == 400
