"""What a request may say: OpenAI's fields and vLLM's, checked strictly, nothing ever ignored."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from pagefleet.engine.errors import RequestRefused
from pagefleet.engine.server.request_id import MOST_CHARACTERS, is_request_id

MAX_STOP_STRINGS = 16
MAX_PROMPTS = 1024
"""Prompts in one completions request: more would only wait in the queue."""
MAX_BAD_WORDS = 512
"""Each makes up to two token sequences."""
MAX_COMPLETION_LOGPROBS = 5
"""OpenAI's limit on /v1/completions; chats have a higher one."""

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
_TEXT = {"type": "string"}

StopStrings = Annotated[
    list[str] | None,
    WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "maxItems": MAX_STOP_STRINGS}]}),
]
Prompt = Annotated[
    list[str] | list[list[int]],
    WithJsonSchema(
        {
            "anyOf": [
                _TEXT,
                {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_PROMPTS},
                _TOKENS,
                {"type": "array", "items": _TOKENS, "minItems": 1, "maxItems": MAX_PROMPTS},
            ]
        }
    ),
]
Content = Annotated[str, WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _PART}]})]


def _wrong(parameter: str, sentence: str) -> RequestRefused:
    return RequestRefused(sentence, parameter=parameter, code="invalid_value")


class StrictModel(BaseModel):
    """Base of all requests: no unknown fields, no conversions between types, finite numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True, protected_namespaces=())


class StreamOptions(StrictModel):
    """What a stream reports beside text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ChatMessage(StrictModel):
    """One message; a content of text parts has become one text already."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _join_text_parts(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("content"), list):
            return {**data, "content": "\n".join(_part_text(part) for part in data["content"])}
        return data

    def to_template(self) -> dict[str, str]:
        """Return the message as chat templates read it."""
        return self.model_dump(exclude_none=True)


def _part_text(part: Any) -> str:
    if not isinstance(part, dict) or set(part) != {"type", "text"} or part["type"] != "text":
        kind = part.get("type") if isinstance(part, dict) else part
        raise ValueError(f'content parts must be {{"type": "text", "text": …}}; this model reads no {kind!r}')
    if not isinstance(part["text"], str):
        raise ValueError("the text of a content part must be a string")
    return part["text"]


class TemplateFields(StrictModel):
    """How a chat becomes a prompt."""

    add_generation_prompt: bool | None = None
    """Begin the assistant's answer; default true, or false when the final message is continued."""
    continue_final_message: bool | None = None
    """Leave the final message open, so that the answer goes on with it."""
    chat_template: str | None = None
    """A template in place of the model's; only where the server trusts its clients with one."""
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def begins_answer(self) -> bool:
        """Tell whether the prompt ends with the beginning of the assistant's message."""
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt

    def check_final_message(self, messages: list[ChatMessage]) -> None:
        """Refuse to continue what cannot be continued; raises RequestRefused."""
        if not self.continue_final_message:
            return
        if self.add_generation_prompt:
            raise _wrong(
                "continue_final_message",
                "continue_final_message leaves the last message open while add_generation_prompt begins a new one; "
                "set one of them",
            )
        if not messages[-1].content.strip():
            raise _wrong("continue_final_message", "continue_final_message needs a last message that has a text")


class SamplingFields(StrictModel):
    """The fields that chat and text completions share; ranges are checked later, all in one place."""

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = Field(default=None, ge=1)
    use_beam_search: bool | None = None
    """Return the `n` likeliest answers that a search of that width finds, best first (vLLM's field)."""
    length_penalty: float | None = None
    """Above 0 a beam search prefers long answers (vLLM's field)."""
    early_stopping: bool | Literal["never"] | None = None
    """End a beam search at `n` answers (true), when better ones are unlikely (false) or impossible (transformers')."""
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = Field(default=None, max_length=MAX_BAD_WORDS)
    seed: int | None = Field(default=None, ge=INT64_MIN, le=INT64_MAX)
    stop: StopStrings = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    """Keep the last tokens of the prompt, so many at most; -1 keeps what the context holds."""
    echo: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    request_id: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    priority: int | None = Field(default=None, ge=INT64_MIN, le=INT64_MAX)
    """Smaller is admitted earlier (vLLM's field)."""
    cache_salt: str | None = Field(default=None, min_length=1)
    """Only requests with the same salt share cached prompts (vLLM's field)."""

    @model_validator(mode="before")
    @classmethod
    def _wrap_single_stop(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("stop"), str):
            return {**data, "stop": [data["stop"]]}
        return data

    @model_validator(mode="after")
    def _check_fields_together(self) -> Self:
        stops = self.stop or []
        if len(stops) > MAX_STOP_STRINGS:
            raise _wrong("stop", f"stop holds {len(stops)} strings; at most {MAX_STOP_STRINGS} are allowed")
        if "" in stops:
            raise _wrong("stop", "stop holds an empty string, which would end every text")
        kept = self.truncate_prompt_tokens
        if kept is not None and kept < 1 and kept != -1:
            raise _wrong(
                "truncate_prompt_tokens",
                f"truncate_prompt_tokens is {kept}; it must be at least 1, or -1 for what the context holds",
            )
        if self.request_id is not None and not is_request_id(self.request_id):
            raise _wrong(
                "request_id", f"request_id must be 1 to {MOST_CHARACTERS} visible ASCII characters, such as order-17"
            )
        self._check_stream_options()
        self._check_beam_search()
        return self

    def _check_beam_search(self) -> None:
        for name in ("length_penalty", "early_stopping"):
            if getattr(self, name) is not None and not self.use_beam_search:
                raise _wrong(name, f"{name} needs use_beam_search: true")
        if not self.use_beam_search:
            return
        if self.stream:
            raise _wrong("use_beam_search", "a beam search knows its answers only at its end; leave out stream")
        if self.stop or self.stop_token_ids:
            raise _wrong("stop", "a beam search ends at the model's own end tokens; leave out stop and stop_token_ids")

    def _check_stream_options(self) -> None:
        options = self.stream_options
        if options is not None and not self.stream:
            raise _wrong("stream_options", "stream_options needs stream: true")
        if options is not None and options.continuous_usage_stats and not options.include_usage:
            raise _wrong(
                "stream_options.continuous_usage_stats",
                "stream_options.continuous_usage_stats needs include_usage: true",
            )
        if self.stream and self.prompt_logprobs is not None:
            raise _wrong("prompt_logprobs", "prompt_logprobs comes with a whole answer only; leave out stream")


class ChatRequest(TemplateFields, SamplingFields):
    """The body of `/v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_special_tokens: bool | None = None
    """Put the model's begin token first; default false, because templates write it themselves."""

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise _wrong(
                "max_completion_tokens",
                f"max_tokens is {old} but max_completion_tokens is {new}; give one of them",
            )
        if self.top_logprobs and not self.logprobs:
            raise _wrong("top_logprobs", "top_logprobs needs logprobs: true")
        if self.echo and self.messages[-1].role != "assistant":
            raise _wrong("echo", "echo repeats the last message in front of the answer, so it must be an assistant's")
        self.check_final_message(self.messages)
        return self


class CompletionRequest(SamplingFields):
    """The body of `/v1/completions`; `prompt` has become a list of texts or token lists already."""

    prompt: Prompt
    logprobs: int | None = None
    add_special_tokens: bool = True

    @property
    def is_prompt_only(self) -> bool:
        """Tell whether the prompt alone is asked back, with no token generated."""
        return bool(self.echo) and self.max_tokens == 0

    @model_validator(mode="before")
    @classmethod
    def _make_prompt_list(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "prompt" not in data:
            return data
        return {**data, "prompt": _prompt_list(data["prompt"])}

    @model_validator(mode="after")
    def _check_logprobs(self) -> Self:
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_COMPLETION_LOGPROBS:
            raise _wrong("logprobs", f"logprobs is {self.logprobs}; it must be from 0 to {MAX_COMPLETION_LOGPROBS}")
        return self


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _prompt_list(prompt: Any) -> list[Any]:
    """Return the prompts as a list; raises RequestRefused for anything but the four forms that OpenAI knows."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(_is_token(item) for item in prompt):
            return [prompt]
        are_texts = all(isinstance(item, str) for item in prompt)
        are_token_lists = all(isinstance(item, list) and item and all(map(_is_token, item)) for item in prompt)
        if are_texts or are_token_lists:
            if len(prompt) > MAX_PROMPTS:
                raise _wrong("prompt", f"prompt holds {len(prompt)} prompts; at most {MAX_PROMPTS} are allowed")
            return prompt
    raise RequestRefused(
        "prompt must be a string, a list of strings, a list of token ids or a list of lists of token ids, none empty",
        parameter="prompt",
        code="invalid_type",
    )


class TokenizeRequest(TemplateFields):
    """The body of `/tokenize`: a text or a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(default=None, min_length=1)
    add_special_tokens: bool | None = None
    """Default: true for a text, false for a chat, whose template writes them itself."""
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _check_one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise _wrong("prompt", "give either prompt or messages")
        if self.messages is not None:
            self.check_final_message(self.messages)
        return self


class DetokenizeRequest(StrictModel):
    """The body of `/detokenize`."""

    model: str | None = None
    tokens: list[int]
