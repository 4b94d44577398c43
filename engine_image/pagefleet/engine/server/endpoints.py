"""The two endpoints that generate: `/v1/chat/completions` and `/v1/completions`."""

import time
from collections.abc import Awaitable, Callable

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from pagefleet.engine.errors import RequestRefused
from pagefleet.engine.server.arrivals import HandOver
from pagefleet.engine.server.body import read_request
from pagefleet.engine.server.disconnect import run_while_connected
from pagefleet.engine.server.generate import Generation
from pagefleet.engine.server.logprob_format import LogprobFormat
from pagefleet.engine.server.protocol import ChatRequest, CompletionRequest, SamplingFields
from pagefleet.engine.server.request_id import take_field
from pagefleet.engine.server.respond import Answer
from pagefleet.engine.server.serving import QueueTerms, Serving, unix_time
from pagefleet.engine.server.shapes import AnswerOptions, ChatShape, CompletionShape, Shape
from pagefleet.engine.server.streaming import EventStream
from pagefleet.engine.server.text_reader import OutputOptions

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default for /v1/completions."""


async def chat_completions(serving: Serving, request: Request) -> Response:
    """Continue a chat."""
    arrival_s = time.monotonic()
    fields = await read_request(ChatRequest, request)
    name = f"chatcmpl-{take_field(request.scope, fields.request_id)}"
    serving.check_model(fields.model)

    async def prepare(hand_over: HandOver) -> Answer:
        prompt = await serving.encode_chat(fields.messages, fields, add_special_tokens=bool(fields.add_special_tokens))
        asked = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
        prompt = serving.truncate(prompt, most_tokens=fields.truncate_prompt_tokens, max_tokens=asked)
        logprobs = (fields.top_logprobs or 0) if fields.logprobs else None
        sampling = await serving.sampling(
            fields,
            max_tokens=[serving.max_tokens(asked, default=None, prompt_tokens=len(prompt), parameter="messages")],
            logprobs=logprobs,
            prompt_logprobs=fields.prompt_logprobs,
        )
        terms = QueueTerms.of(fields, arrival_s=arrival_s, hand_over=hand_over)
        generations = await serving.start([prompt], sampling, OutputOptions.of(fields), terms)
        text_before = fields.messages[-1].content if fields.echo else ""
        shape = ChatShape(_answer_options(serving, fields, logprobs), text_before=text_before)
        return _answer(serving, name, shape, generations)

    return await _respond(serving, request, fields, arrival_s, prepare)


async def completions(serving: Serving, request: Request) -> Response:
    """Continue one text or several, each of which becomes a choice."""
    arrival_s = time.monotonic()
    fields = await read_request(CompletionRequest, request)
    name = f"cmpl-{take_field(request.scope, fields.request_id)}"
    serving.check_model(fields.model)

    async def prepare(hand_over: HandOver) -> Answer:
        asked = 1 if fields.is_prompt_only else fields.max_tokens  # the core always makes a token
        prompts = [
            serving.truncate(prompt, most_tokens=fields.truncate_prompt_tokens, max_tokens=asked)
            for prompt in await _encode_prompts(serving, fields)
        ]
        max_tokens = [
            serving.max_tokens(asked, default=DEFAULT_COMPLETION_TOKENS, prompt_tokens=len(prompt), parameter="prompt")
            for prompt in prompts
        ]
        sampling = await serving.sampling(
            fields,
            max_tokens=max_tokens,
            logprobs=fields.logprobs,
            prompt_logprobs=_prompt_logprobs(fields),
        )
        options = OutputOptions.of(fields, echo_prompt=bool(fields.echo), is_prompt_only=fields.is_prompt_only)
        terms = QueueTerms.of(fields, arrival_s=arrival_s, hand_over=hand_over)
        generations = await serving.start(prompts, sampling, options, terms)
        shape = CompletionShape(_answer_options(serving, fields, fields.logprobs))
        return _answer(serving, name, shape, generations)

    return await _respond(serving, request, fields, arrival_s, prepare)


def _prompt_logprobs(fields: CompletionRequest) -> int | None:
    """Return how many likeliest tokens the core must score for each of the prompt's: an echo shows scores as well."""
    asked = [fields.prompt_logprobs, fields.logprobs if fields.echo else None]
    return max((top for top in asked if top is not None), default=None)


def _answer_options(serving: Serving, fields: SamplingFields, logprobs: int | None) -> AnswerOptions:
    return AnswerOptions(
        format=LogprobFormat(serving.tokenizer, are_tokens_ids=bool(fields.return_tokens_as_token_ids)),
        logprobs=logprobs,
        prompt_logprobs=fields.prompt_logprobs,
        has_token_ids=bool(fields.return_token_ids),
    )


def _answer(serving: Serving, name: str, shape: Shape, generations: list[Generation]) -> Answer:
    return Answer(
        request_id=name,
        created=unix_time(),
        model_name=serving.model_name,
        shape=shape,
        generations=generations,
        metrics=serving.metrics,
    )


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


async def _respond(
    serving: Serving,
    request: Request,
    fields: SamplingFields,
    arrival_s: float,
    prepare: Callable[[HandOver], Awaitable[Answer]],
) -> Response:
    """Start the sequences, then answer; whenever the client goes, they are aborted at once."""

    async def begin() -> Answer:
        with serving.preparing.one(arrival_s) as hand_over:
            return await prepare(hand_over)

    async def run_to_end() -> JSONResponse:
        answer = await begin()
        try:
            return JSONResponse(await answer.whole())
        finally:
            answer.close()

    async def start() -> EventStream:
        answer = await begin()
        return EventStream(answer.events(fields), close=answer.close)

    return await run_while_connected(request.receive, start() if fields.stream else run_to_end())
