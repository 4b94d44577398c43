"""What a request may say: OpenAI's fields and vLLM's, checked strictly, nothing ever ignored.

A field that this engine does not support is listed with the values that mean "off"; any other value is refused by name.
"""

from typing import Any, Literal, Self, TypeVar

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pagefleet.engine.errors import RequestRefused

MAX_STOP_STRINGS = 16
MAX_PROMPTS = 1024
"""Prompts in one completions request: more would only wait in the queue."""

OFF: tuple[Any, ...] = (None,)
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "prompt_logprobs": OFF,
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "parallel_tool_calls": (None, True, False),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "reasoning_effort": OFF,
    "modalities": (None, ["text"]),
    "audio": OFF,
    "prediction": OFF,
    "store": (None, False),
    "metadata": (None, {}),
    "service_tier": (None, "auto", "default"),
    "verbosity": OFF,
    "web_search_options": OFF,
    "echo": (None, False),
    "suffix": OFF,
    "use_beam_search": (None, False),
    "length_penalty": (None, 1, 1.0),
    "structured_outputs": OFF,
    "guided_json": OFF,
    "guided_regex": OFF,
    "guided_choice": (None, []),
    "guided_grammar": OFF,
    "spaces_between_special_tokens": (None, True),
    "truncate_prompt_tokens": OFF,
    "allowed_token_ids": OFF,
    "bad_words": (None, []),
    "continue_final_message": (None, False),
    "documents": (None, []),
    "chat_template": OFF,
    "kv_transfer_params": OFF,
    "repetition_detection": OFF,
    "return_token_ids": (None, False),
    "return_tokens_as_token_ids": (None, False),
    "mm_processor_kwargs": OFF,
    "stream_interval": (None, 1),
    "request_id": OFF,
    "prompt_embeds": OFF,
    "prompt_cache_key": OFF,
    "prompt_cache_retention": OFF,
    "safety_identifier": OFF,
}
"""Fields of OpenAI's and vLLM's surface that are not supported, with the values that ask for nothing."""

UNSUPPORTED_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    "tool_calls": (None, []),
    "tool_call_id": OFF,
    "function_call": OFF,
    "refusal": OFF,
    "audio": OFF,
    "annotations": (None, []),
    "reasoning": OFF,
    "reasoning_content": OFF,
}

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def _drop_switched_off(data: dict[str, Any], unsupported: dict[str, tuple[Any, ...]], where: str) -> dict[str, Any]:
    """Remove unsupported fields whose value asks for nothing; raises RequestRefused for any other value."""
    kept = {}
    for name, value in data.items():
        if name not in unsupported:
            kept[name] = value
        elif not any(type(value) is type(off) and value == off for off in unsupported[name]):
            shown = pydantic_core.to_json(value)[:60].decode(errors="replace")
            raise RequestRefused(
                f"{where}{name} is not supported by this engine, and {shown} asks for it; leave it out",
                parameter=f"{where}{name}",
                code="unsupported_parameter",
            )
    return kept


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
    content: str
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


class SamplingFields(StrictModel):
    """The fields that chat and text completions share; ranges are checked later, all in one place."""

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = Field(default=None, ge=1)
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = Field(default=None, ge=INT64_MIN, le=INT64_MAX)
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
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
            raise RequestRefused(
                f"stop holds {len(stops)} strings; at most {MAX_STOP_STRINGS} are allowed",
                parameter="stop",
                code="invalid_value",
            )
        if "" in stops:
            raise RequestRefused(
                "stop holds an empty string, which would end every text", parameter="stop", code="invalid_value"
            )
        options = self.stream_options
        if options is not None and not self.stream:
            raise RequestRefused("stream_options needs stream: true", parameter="stream_options", code="invalid_value")
        if options is not None and options.continuous_usage_stats and not options.include_usage:
            raise RequestRefused(
                "stream_options.continuous_usage_stats needs include_usage: true",
                parameter="stream_options.continuous_usage_stats",
                code="invalid_value",
            )
        return self


class ChatRequest(SamplingFields):
    """The body of `/v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_limits_agree(self) -> Self:
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise RequestRefused(
                f"max_tokens is {old} but max_completion_tokens is {new}; give one of them",
                parameter="max_completion_tokens",
                code="invalid_value",
            )
        return self


class CompletionRequest(SamplingFields):
    """The body of `/v1/completions`; `prompt` has become a list of texts or token lists already."""

    prompt: list[str] | list[list[int]]
    add_special_tokens: bool = True

    @model_validator(mode="before")
    @classmethod
    def _make_prompt_list(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "prompt" not in data:
            return data
        return {**data, "prompt": _prompt_list(data["prompt"])}


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
                raise RequestRefused(
                    f"prompt holds {len(prompt)} prompts; at most {MAX_PROMPTS} are allowed",
                    parameter="prompt",
                    code="invalid_value",
                )
            return prompt
    raise RequestRefused(
        "prompt must be a string, a list of strings, a list of token ids or a list of lists of token ids, none empty",
        parameter="prompt",
        code="invalid_type",
    )


class TokenizeRequest(StrictModel):
    """The body of `/tokenize`: a text or a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(default=None, min_length=1)
    add_special_tokens: bool | None = None
    """Default: true for a text, false for a chat, whose template writes them itself."""
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _check_one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise RequestRefused("give either prompt or messages", parameter="prompt", code="invalid_value")
        return self


class DetokenizeRequest(StrictModel):
    """The body of `/detokenize`."""

    model: str | None = None
    tokens: list[int]


RequestModel = TypeVar("RequestModel", bound=StrictModel)


def parse_request(kind: type[RequestModel], body: bytes) -> RequestModel:
    """Read a request body; raises RequestRefused that names the field that is wrong."""
    try:
        data = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestRefused(f"the body is no valid JSON: {error}", code="invalid_json") from error
    if not isinstance(data, dict):
        raise RequestRefused("the body must be a JSON object", code="invalid_json")
    data = _drop_switched_off(data, UNSUPPORTED, "")
    # OpenAI's clients send null for "not given"
    data = {name: value for name, value in data.items() if value is not None or name not in kind.model_fields}
    messages = data.get("messages")
    if isinstance(messages, list):
        data["messages"] = [
            _drop_switched_off(message, UNSUPPORTED_IN_MESSAGE, f"messages[{index}].")
            if isinstance(message, dict)
            else message
            for index, message in enumerate(messages)
        ]
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _refusal(error) from error


def _refusal(error: ValidationError) -> RequestRefused:
    first = error.errors(include_url=False)[0]
    field = ""
    for part in first["loc"]:
        if isinstance(part, int):
            field += f"[{part}]"
        elif not part.startswith(("list[", "function-")):
            field += f".{part}" if field else part
    match first["type"]:
        case "extra_forbidden":
            return RequestRefused(f"unknown field {field}", parameter=field, code="unknown_parameter")
        case "missing":
            return RequestRefused(f"{field} is required", parameter=field, code="missing_required_parameter")
        case "value_error":
            return RequestRefused(f"{field}: {first['ctx']['error']}", parameter=field, code="invalid_value")
        case _:
            reason = first["msg"].replace("Input should", "it should")
            shown = repr(first["input"])
            got = f", not {shown}" if len(shown) <= 60 else ""
            return RequestRefused(f"{field}: {reason}{got}", parameter=field, code="invalid_value")
