"""OpenAI's answer objects: chats and completions say the same in different shapes."""

from dataclasses import dataclass
from typing import Any, Protocol

from pagefleet.engine.server.generate import Generation
from pagefleet.engine.server.logprob_format import LogprobFormat
from pagefleet.engine.server.text_reader import Delta


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """What an answer holds beside its text."""

    format: LogprobFormat
    logprobs: int | None = None
    """Likeliest tokens shown with each token; None shows no log-probabilities."""
    prompt_logprobs: int | None = None
    """The same for the prompt, in a field of its own."""
    has_token_ids: bool = False


class Shape(Protocol):
    """How one endpoint writes its choices."""

    object_name: str
    chunk_object_name: str

    def choice(self, index: int, delta: Delta, generation: Generation) -> dict[str, Any]:
        """Return a whole choice."""

    def head(self, generation: Generation) -> dict[str, Any]:
        """Return what a body, or a choice's first chunk, says beside its choices."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the choice of the chunk before any text; None when there is no such chunk."""

    def chunk_choice(self, index: int, delta: Delta, generation: Generation, *, is_first: bool) -> dict[str, Any]:
        """Return the choice of a chunk with text."""


class ChatShape:
    """OpenAI's chat completion objects."""

    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"

    def __init__(self, options: AnswerOptions, *, text_before: str = "") -> None:
        self._options = options
        self._text_before = text_before

    def choice(self, index: int, delta: Delta, generation: Generation) -> dict[str, Any]:  # noqa: ARG002
        """Return a whole message."""
        message = {"role": "assistant", "content": self._text_before + delta.text, "refusal": None}
        return {"index": index, "message": message, **self._rest(delta)}

    def head(self, generation: Generation) -> dict[str, Any]:
        """Return what is known of the prompt: a chat has one, so it stands beside the choices."""
        return _prompt_fields(self._options, generation)

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the role, which only the first chunk carries, and what the answer goes on with."""
        delta = {"role": "assistant", "content": self._text_before}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def chunk_choice(self, index: int, delta: Delta, generation: Generation, *, is_first: bool) -> dict[str, Any]:  # noqa: ARG002
        """Return a piece of the message."""
        return {"index": index, "delta": {"content": delta.text}, **self._rest(delta)}

    def _rest(self, delta: Delta) -> dict[str, Any]:
        has_logprobs = self._options.logprobs is not None
        return {
            "logprobs": self._options.format.chat(delta.tokens) if has_logprobs else None,
            **_token_ids(self._options, delta),
            **_end(delta),
        }


class CompletionShape:
    """OpenAI's text completion objects."""

    object_name = chunk_object_name = "text_completion"

    def __init__(self, options: AnswerOptions) -> None:
        self._options = options

    def choice(self, index: int, delta: Delta, generation: Generation) -> dict[str, Any]:
        """Return a whole text."""
        return self.chunk_choice(index, delta, generation, is_first=True)

    def head(self, generation: Generation) -> dict[str, Any]:  # noqa: ARG002
        """Return nothing: every choice may have a prompt of its own."""
        return {}

    def opening(self, index: int) -> dict[str, Any] | None:  # noqa: ARG002
        """Return nothing: texts have no role to begin with."""
        return None

    def chunk_choice(self, index: int, delta: Delta, generation: Generation, *, is_first: bool) -> dict[str, Any]:
        """Return a piece of the text, the first one with what is known of the prompt."""
        top = self._options.logprobs
        return {
            "index": index,
            "text": delta.text,
            "logprobs": None if top is None else self._options.format.completion((*delta.echoed, *delta.tokens), top),
            **_token_ids(self._options, delta),
            **(_prompt_fields(self._options, generation) if is_first else {}),
            **_end(delta),
        }


def _end(delta: Delta) -> dict[str, Any]:
    if delta.finish_reason is None:
        return {"finish_reason": None}
    return {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}


def _token_ids(options: AnswerOptions, delta: Delta) -> dict[str, Any]:
    return {"token_ids": [token.token_id for token in delta.tokens]} if options.has_token_ids else {}


def _prompt_fields(options: AnswerOptions, generation: Generation) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if options.has_token_ids:
        fields["prompt_token_ids"] = generation.prompt_token_ids
    if options.prompt_logprobs is not None:
        fields["prompt_logprobs"] = options.format.prompt(generation.prompt_logprobs, options.prompt_logprobs)
    return fields
