"""One way to ask both generating endpoints through OpenAI's client, and a register of which field is proven where."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from openai import OpenAI

Endpoint = Literal["chat", "completions"]
Test = TypeVar("Test", bound=Callable[..., None])

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "return_token_ids": True}
PROMPT = "once upon a time"


def covers(*fields: str) -> Callable[[Test], Test]:
    """Say which fields a test shows the effect of, such as `sampling.top_k`."""

    def mark(test: Test) -> Test:
        test.covered_fields = fields  # type: ignore[attr-defined]
        return test

    return mark


@dataclass
class Reply:
    """What one choice said, whole or put together from a stream."""

    id: str = ""
    text: str = ""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] = field(default_factory=list)
    prompt_token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: Any = None
    logprobs: dict[str, list[Any]] = field(default_factory=dict)
    """Lists of OpenAI's object; a stream's pieces joined."""
    usage: dict[str, Any] = field(default_factory=dict)
    chunks: list[dict[str, Any]] = field(default_factory=list)

    def take(self, body: dict[str, Any]) -> None:
        """Add a body, or a chunk of a stream."""
        self.id = body["id"]
        self.usage = body.get("usage") or self.usage
        self.prompt_token_ids = body.get("prompt_token_ids") or self.prompt_token_ids
        self.prompt_logprobs = body.get("prompt_logprobs") or self.prompt_logprobs
        for choice in body["choices"]:
            self.text += choice.get("text") or (choice.get("message") or choice.get("delta") or {}).get("content") or ""
            self.finish_reason = choice["finish_reason"] or self.finish_reason
            self.stop_reason = choice.get("stop_reason", self.stop_reason)
            self.token_ids += choice.get("token_ids") or []
            self.prompt_token_ids = choice.get("prompt_token_ids") or self.prompt_token_ids
            self.prompt_logprobs = choice.get("prompt_logprobs") or self.prompt_logprobs
            for name, values in (choice.get("logprobs") or {}).items():
                self.logprobs.setdefault(name, []).extend(values or [])


@dataclass(frozen=True)
class Asker:
    """Ask one endpoint; fields that the client does not know travel in its `extra_body`."""

    client: OpenAI
    endpoint: Endpoint

    def __call__(self, **fields: Any) -> Reply:
        """Ask greedily unless told otherwise, and check that a stream says what the body says."""
        fields = {**GREEDY, "model": "tiny", **fields}
        if self.endpoint == "chat":
            fields.setdefault("messages", [{"role": "user", "content": PROMPT}])
        else:
            fields.setdefault("prompt", PROMPT)
        reply = Reply()
        answer = self._create(fields)
        if not fields.get("stream"):
            reply.take(answer.model_dump())
            return reply
        for chunk in answer:
            reply.chunks.append(chunk.model_dump())
            reply.take(reply.chunks[-1])
        return reply

    def _create(self, fields: dict[str, Any]) -> Any:
        create: Any = self.client.chat.completions.create if self.endpoint == "chat" else self.client.completions.create
        known = set(inspect.signature(create).parameters)
        native = {name: value for name, value in fields.items() if name in known}
        extra = {name: value for name, value in fields.items() if name not in known}
        return create(**native, extra_body=extra)
