"""The two endpoints that generate: `/v1/chat/completions` and `/v1/completions`."""

import time
from collections.abc import Awaitable, Callable

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from pagefleet.engine.errors import RequestRefused
from pagefleet.engine.server.body import read_request
from pagefleet.engine.server.disconnect import run_while_connected
from pagefleet.engine.server.generate import OutputOptions
from pagefleet.engine.server.protocol import ChatRequest, CompletionRequest, SamplingFields
from pagefleet.engine.server.respond import Answer, ChatShape, CompletionShape
from pagefleet.engine.server.serving import Serving, new_id, unix_time
from pagefleet.engine.server.streaming import EventStream

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default for /v1/completions."""


async def chat_completions(serving: Serving, request: Request) -> Response:
    """Continue a chat."""
    arrival_s = time.monotonic()
    fields = await read_request(ChatRequest, request)
    serving.check_model(fields.model)

    async def prepare() -> Answer:
        prompt = await serving.encode_chat(
            fields.messages,
            add_generation_prompt=fields.add_generation_prompt,
            template_arguments=fields.chat_template_kwargs or {},
            add_special_tokens=False,
        )
        asked = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
        max_tokens = serving.max_tokens(asked, default=None, prompt_tokens=len(prompt), parameter="messages")
        sampling = serving.sampling(fields, max_tokens=max_tokens)
        request_id = new_id("chatcmpl")
        generations = await serving.start(
            request_id,
            [prompt],
            [sampling],
            OutputOptions.of(fields),
            arrival_s=arrival_s,
            cache_salt=fields.cache_salt,
            priority=fields.priority,
        )
        return Answer(
            request_id=request_id,
            created=unix_time(),
            model_name=serving.model_name,
            shape=ChatShape(),
            generations=generations,
            metrics=serving.metrics,
        )

    return await _respond(request, fields, prepare)


async def completions(serving: Serving, request: Request) -> Response:
    """Continue one text or several, each of which becomes a choice."""
    arrival_s = time.monotonic()
    fields = await read_request(CompletionRequest, request)
    serving.check_model(fields.model)

    async def prepare() -> Answer:
        prompts = await _encode_prompts(serving, fields)
        sampling = [
            serving.sampling(
                fields,
                max_tokens=serving.max_tokens(
                    fields.max_tokens,
                    default=DEFAULT_COMPLETION_TOKENS,
                    prompt_tokens=len(prompt),
                    parameter="prompt",
                ),
            )
            for prompt in prompts
        ]
        request_id = new_id("cmpl")
        generations = await serving.start(
            request_id,
            prompts,
            sampling,
            OutputOptions.of(fields),
            arrival_s=arrival_s,
            cache_salt=fields.cache_salt,
            priority=fields.priority,
        )
        return Answer(
            request_id=request_id,
            created=unix_time(),
            model_name=serving.model_name,
            shape=CompletionShape(),
            generations=generations,
            metrics=serving.metrics,
        )

    return await _respond(request, fields, prepare)


async def _encode_prompts(serving: Serving, fields: CompletionRequest) -> list[list[int]]:
    texts = [prompt for prompt in fields.prompt if isinstance(prompt, str)]
    if texts:
        prompts = await serving.encode(texts, add_special_tokens=fields.add_special_tokens)
        if not all(prompts):
            raise RequestRefused(
                "the prompt is empty, so there is nothing to continue", parameter="prompt", code="invalid_value"
            )
        return prompts
    prompts = [prompt for prompt in fields.prompt if isinstance(prompt, list)]
    for tokens in prompts:
        serving.check_tokens(tokens[: serving.ready.max_model_len], "prompt")  # a longer one is refused as such
    return prompts


async def _respond(request: Request, fields: SamplingFields, prepare: Callable[[], Awaitable[Answer]]) -> Response:
    """Start the sequences, then answer; whenever the client goes, they are aborted at once."""

    async def run_to_end() -> JSONResponse:
        answer = await prepare()
        try:
            return JSONResponse(await answer.whole())
        finally:
            answer.close()

    async def start() -> EventStream:
        answer = await prepare()
        return EventStream(answer.events(fields), close=answer.close)

    return await run_while_connected(request.receive, start() if fields.stream else run_to_end())
