"""The mixture of requests that a soak sends: request number i of a seed is always the same."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal

import numpy as np

Leaving = Literal["never", "in_stream", "while_waiting"]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODY_LIMIT_BYTES = 16 * 2**20
"""What the server takes; a padded body has one byte more."""
SMALLEST_CONTEXT_TOKENS = 128
SHARED_PREFIXES = 4
WORDS = (
    *("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "then", "once", "upon", "time"),
    *("in", "little", "house", "near", "woods", "naïve", "café", "你好", "мир", "🦀"),
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What the server can hold, from which prompts and outputs take their lengths."""

    context_tokens: int
    most_choices: int
    """Sequences of one request."""


@dataclass(frozen=True, kw_only=True)
class SoakRequest:
    """Say what to send, what should come of it, and whether its client stays."""

    kind: str
    path: str
    body: Mapping[str, Any]
    expected_status: HTTPStatus = HTTPStatus.OK
    leaving: Leaving = "never"
    events_before_leaving: int = 1
    seconds_before_leaving: float = 0.0
    is_padded: bool = False
    """The body is made too large with spaces behind its JSON."""
    declares_length: bool = True
    """Send Content-Length; else the body comes in chunks, and the server learns its length as it reads."""

    @property
    def is_stream(self) -> bool:
        """Tell whether the answer comes in events."""
        return bool(self.body.get("stream"))

    @property
    def choices(self) -> int:
        """Count the answers that belong to the request."""
        return int(self.body.get("n", 1))

    def content(self) -> bytes:
        """Return the body's bytes."""
        text = json.dumps(self.body, ensure_ascii=False).encode()
        return text.ljust(BODY_LIMIT_BYTES + 1) if self.is_padded else text


@dataclass(frozen=True)
class Draw:
    """Draw the parts of one request."""

    generator: np.random.Generator
    sizes: Sizes
    fields: dict[str, Any] = field(default_factory=dict)

    def number(self, low: int, high: int) -> int:
        """Return a number of `low` to `high`."""
        return int(self.generator.integers(low, max(low, high) + 1))

    def text(self, characters: int) -> str:
        """Return words of so many characters together."""
        words: list[str] = []
        length = 0
        while length < characters:
            words.append(WORDS[self.number(0, len(WORDS) - 1)])
            length += len(words[-1]) + 1
        return " ".join(words)[:characters]

    def prompt_text(self) -> str:
        """Return a text of an ordinary length."""
        return self.text(self.number(4, self.sizes.context_tokens // 8))

    def sampling(self) -> dict[str, Any]:
        """Return fields that every answered request has: its length, its chance, and a prompt that surely fits."""
        return {
            "max_tokens": self.number(2, self.sizes.context_tokens // 16),
            "temperature": (0.0, 0.7, 1.0)[self.number(0, 2)],
            "top_p": (0.9, 1.0)[self.number(0, 1)],
            "seed": self.number(0, 2**31),
            "truncate_prompt_tokens": self.sizes.context_tokens // 2,
        }

    def chat(self, *, system: str = "", **fields: Any) -> dict[str, Any]:
        """Return a chat's body."""
        opening = [{"role": "system", "content": system}] if system else []
        messages = [*opening, {"role": "user", "content": self.prompt_text()}]
        return {"messages": messages, **self.sampling(), **fields}

    def completion(self, **fields: Any) -> dict[str, Any]:
        """Return a completion's body."""
        return {"prompt": self.prompt_text(), **self.sampling(), **fields}


STREAM: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


def _chat(draw: Draw) -> SoakRequest:
    return SoakRequest(kind="chat", path=CHAT, body=draw.chat())


def _chat_stream(draw: Draw) -> SoakRequest:
    return SoakRequest(kind="chat, streamed", path=CHAT, body=draw.chat(**STREAM))


def _completion(draw: Draw) -> SoakRequest:
    return SoakRequest(kind="completion", path=COMPLETIONS, body=draw.completion())


def _completion_stream(draw: Draw) -> SoakRequest:
    return SoakRequest(kind="completion, streamed", path=COMPLETIONS, body=draw.completion(**STREAM))


def _shared_prefix(draw: Draw) -> SoakRequest:
    name = draw.number(1, SHARED_PREFIXES)
    system = Draw(np.random.default_rng(name), draw.sizes).text(draw.sizes.context_tokens // 4)
    return SoakRequest(kind="shared prefix", path=CHAT, body=draw.chat(system=system, **STREAM))


def _choices(draw: Draw) -> SoakRequest:
    stream = STREAM if draw.number(0, 1) else {}
    body = draw.completion(n=draw.number(1, draw.sizes.most_choices), **stream)
    return SoakRequest(kind="several choices", path=COMPLETIONS, body=body)


def _beams(draw: Draw) -> SoakRequest:
    body = draw.completion(n=draw.number(1, draw.sizes.most_choices), use_beam_search=True)
    return SoakRequest(kind="beam search", path=COMPLETIONS, body=body)


def _stop(draw: Draw) -> SoakRequest:
    stream = STREAM if draw.number(0, 1) else {}
    body = draw.completion(stop=["e", "1", "7 "], min_tokens=1, **stream)
    return SoakRequest(kind="stop strings", path=COMPLETIONS, body=body)


def _logprobs(draw: Draw) -> SoakRequest:
    if draw.number(0, 1):
        return SoakRequest(kind="logprobs", path=CHAT, body=draw.chat(logprobs=True, top_logprobs=3, **STREAM))
    return SoakRequest(kind="logprobs", path=COMPLETIONS, body=draw.completion(logprobs=2, prompt_logprobs=1))


def _long_prompt(draw: Draw) -> SoakRequest:
    tokens = draw.sizes.context_tokens * 3 // 4
    body = draw.completion(prompt=draw.text(4 * tokens), truncate_prompt_tokens=tokens, **STREAM)
    return SoakRequest(kind="long prompt", path=COMPLETIONS, body=body)


def _priority(draw: Draw) -> SoakRequest:
    # Only urgent ones: while the queue is full of requests without a priority, those behind them rightly never come up.
    return SoakRequest(kind="priority", path=CHAT, body=draw.chat(priority=draw.number(-2, 0), **STREAM))


def _wrong_field(draw: Draw) -> SoakRequest:
    wrong = ({"temperature": -1.0}, {"n": 0}, {"stop": ""}, {"tools": [{"type": "function"}]}, {"no_field": 1})
    body = draw.chat(**wrong[draw.number(0, len(wrong) - 1)])
    return SoakRequest(kind="wrong field", path=CHAT, body=body, expected_status=HTTPStatus.BAD_REQUEST)


def _too_long(draw: Draw) -> SoakRequest:
    body = draw.completion(max_tokens=2 * draw.sizes.context_tokens)
    return SoakRequest(kind="too long", path=COMPLETIONS, body=body, expected_status=HTTPStatus.BAD_REQUEST)


def _unknown_model(draw: Draw) -> SoakRequest:
    body = draw.chat(model=f"model-{draw.number(0, 10**9)}")
    return SoakRequest(kind="unknown model", path=CHAT, body=body, expected_status=HTTPStatus.NOT_FOUND)


def _unknown_path(draw: Draw) -> SoakRequest:
    path = f"/v1/{draw.number(0, 10**9)}"
    return SoakRequest(kind="unknown path", path=path, body={}, expected_status=HTTPStatus.NOT_FOUND)


def _too_large(draw: Draw) -> SoakRequest:
    return SoakRequest(
        kind="too large",
        path=CHAT,
        body=draw.chat(),
        expected_status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        is_padded=True,
        declares_length=bool(draw.number(0, 1)),
    )


def _leaves_in_stream(draw: Draw) -> SoakRequest:
    body = draw.chat(ignore_eos=True, **STREAM)
    events = draw.number(1, 8)
    return SoakRequest(kind="leaves in stream", path=CHAT, body=body, leaving="in_stream", events_before_leaving=events)


def _leaves_while_waiting(draw: Draw) -> SoakRequest:
    return SoakRequest(
        kind="leaves while waiting",
        path=COMPLETIONS,
        body=draw.completion(ignore_eos=True),
        leaving="while_waiting",
        seconds_before_leaving=draw.number(1, 500) / 1000,
    )


PARTS: Mapping[Callable[[Draw], SoakRequest], int] = {
    _chat: 56,
    _chat_stream: 56,
    _completion: 40,
    _completion_stream: 48,
    _shared_prefix: 56,
    _choices: 32,
    _beams: 12,
    _stop: 24,
    _logprobs: 20,
    _long_prompt: 16,
    _priority: 16,
    _wrong_field: 16,
    _too_long: 8,
    _unknown_model: 8,
    _unknown_path: 4,
    _too_large: 1,
    _leaves_in_stream: 24,
    _leaves_while_waiting: 12,
}
"""How often each kind comes, in proportion."""


def soak_request(seed: int, index: int, sizes: Sizes, *, has_priorities: bool) -> SoakRequest:
    """Return request number `index`; a server that serves by arrival gets no priorities."""
    generator = np.random.default_rng((seed, index))
    kinds = [kind for kind in PARTS if has_priorities or kind is not _priority]
    shares = np.array([PARTS[kind] for kind in kinds], dtype=float)
    kind = kinds[int(generator.choice(len(kinds), p=shares / shares.sum()))]
    return kind(Draw(generator, sizes))
