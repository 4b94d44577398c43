"""Beam search over HTTP: the beams of the engine's own search, best first, and what it cannot be combined with."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.llm import LLM
from pagefleet.engine.sampling_params import SamplingParameters
from tests.engine.server.conformance import covers

PROMPT = list(range(5, 30))
BODY: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 6, "use_beam_search": True, "n": 3, "return_token_ids": True}


@covers("sampling.use_beam_search", "sampling.length_penalty", "sampling.early_stopping")
@pytest.mark.parametrize(
    "fields", [{}, {"length_penalty": -3.0}, {"early_stopping": True}, {"early_stopping": "never"}]
)
def test_beams_are_the_engines_own(http: httpx.Client, tiny_model: Path, fields: dict[str, Any]) -> None:
    answer = http.post("/v1/completions", json={**BODY, **fields}).json()
    llm = LLM(EngineConfig(model=str(tiny_model), threads=1, kv_cache_memory_bytes=2**22, max_model_len=512))
    sampling = SamplingParameters(max_tokens=6, use_beam_search=True, beam_width=3, **fields)
    expected = [beam.token_ids for beam in llm.generate([PROMPT], sampling)]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["token_ids"] for choice in answer["choices"]] == expected
    assert answer["usage"]["prompt_tokens"] == len(PROMPT)
    assert answer["usage"]["completion_tokens"] == sum(map(len, expected))


def test_a_chat_can_be_searched_too(http: httpx.Client) -> None:
    body = {**BODY, "messages": [{"role": "user", "content": "hello"}]}
    del body["prompt"]
    choices = http.post("/v1/chat/completions", json=body).json()["choices"]
    assert len({tuple(choice["token_ids"]) for choice in choices}) == 3


def test_each_beam_has_its_scores(http: httpx.Client) -> None:
    choices = http.post("/v1/completions", json={**BODY, "logprobs": 2}).json()["choices"]
    for choice in choices:
        assert len(choice["logprobs"]["token_logprobs"]) == len(choice["token_ids"])
    sums = [sum(choice["logprobs"]["token_logprobs"]) for choice in choices]
    assert sums == sorted(sums, reverse=True), "all are as long, so the likeliest is first"


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"stream": True}, "use_beam_search"),
        ({"stop": "x"}, "stop"),
        ({"stop_token_ids": [7]}, "stop"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"use_beam_search": False, "length_penalty": 2.0}, "length_penalty"),
        ({"use_beam_search": None, "early_stopping": True}, "early_stopping"),
        ({"length_penalty": 400.0}, "length_penalty"),
        ({"early_stopping": "soon"}, "early_stopping.bool"),
    ],
)
def test_what_a_search_does_not_look_at_is_refused(http: httpx.Client, fields: dict[str, Any], parameter: str) -> None:
    answer = http.post("/v1/completions", json={**BODY, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == parameter
