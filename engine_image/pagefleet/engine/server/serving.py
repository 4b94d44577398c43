"""From a request's fields to running sequences: the checks that need the model, and the submission."""

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pagefleet.engine.core_client import CoreClient
from pagefleet.engine.errors import EngineError, QueueFull, RequestRefused
from pagefleet.engine.messages import CoreReady
from pagefleet.engine.metrics import EngineMetrics
from pagefleet.engine.sampling_params import SamplingParameters, check_sampling_parameters
from pagefleet.engine.server.errors import unknown_model
from pagefleet.engine.server.generate import Generation, OutputOptions
from pagefleet.engine.server.protocol import ChatMessage, SamplingFields
from pagefleet.engine.tokenizer import Tokenizer

INLINE_CHARACTERS = 2000
"""Shorter texts encode in about half a millisecond, little more than a thread costs."""

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Everything that a request needs once the engine is up."""

    client: CoreClient
    ready: CoreReady
    tokenizer: Tokenizer
    metrics: EngineMetrics
    model_name: str
    created: int
    """Unix time at which the model was loaded."""
    seeds: random.Random
    """Seeds for requests that bring none: the engine's seed makes a whole run reproducible."""

    def check_model(self, asked: str | None) -> None:
        """Refuse a model that is not served here; raises HttpError 404."""
        if asked is not None and asked != self.model_name:
            raise unknown_model(asked, self.model_name)

    async def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Encode texts; raises RequestRefused."""

        def work() -> list[list[int]]:
            return [self.tokenizer.encode(text, add_special_tokens=add_special_tokens) for text in texts]

        return await _run_sized(work, characters=sum(map(len, texts)))

    async def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool,
        template_arguments: dict[str, Any],
        add_special_tokens: bool,
    ) -> list[int]:
        """Render and encode a chat; raises RequestRefused. Templates write the special tokens themselves."""

        def work() -> list[int]:
            text = self.tokenizer.render_chat(
                [message.to_template() for message in messages],
                add_generation_prompt=add_generation_prompt,
                template_arguments=template_arguments,
            )
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

        prompt = await _run_sized(work, characters=sum(len(message.content) + 10 for message in messages))
        if not prompt:
            raise RequestRefused("the messages make an empty prompt", parameter="messages", code="invalid_value")
        return prompt

    def check_tokens(self, token_ids: Sequence[int], parameter: str) -> None:
        """Refuse token ids that the model does not have; raises RequestRefused."""
        size = self.ready.vocabulary_size
        wrong = next((token for token in token_ids if not 0 <= token < size), None)
        if wrong is not None:
            raise RequestRefused(
                f"{parameter} holds token {wrong}; token ids go from 0 to {size - 1}",
                parameter=parameter,
                code="invalid_value",
            )

    def max_tokens(self, asked: int | None, *, default: int | None, prompt_tokens: int, parameter: str) -> int:
        """Return how many tokens to generate at most; without a default it is what the context allows.

        `parameter` is the field that holds the prompt. Raises RequestRefused when the context is too short.
        """
        room = self.ready.max_model_len - prompt_tokens
        if room < 1 or (asked is not None and asked > room):
            self.metrics.increment("admission_rejections", labels=("too_long",))
            raise _too_long(self.ready.max_model_len, prompt_tokens, asked, parameter)
        if asked is not None:
            return asked
        return room if default is None else min(default, room)

    def sampling(self, fields: SamplingFields, *, max_tokens: int) -> SamplingParameters:
        """Fill in defaults and check ranges; raises RequestRefused."""
        if fields.priority and self.ready.scheduling_policy != "priority":
            raise RequestRefused(
                f"priority is {fields.priority}, but this engine serves by arrival; leave it out, or start the engine "
                "with --scheduling-policy priority",
                parameter="priority",
                code="unsupported_parameter",
            )
        if fields.n is not None and fields.n > self.ready.max_num_seqs:
            raise RequestRefused(
                f"n is {fields.n}, but this engine runs {self.ready.max_num_seqs} sequences at once; "
                f"use n of at most {self.ready.max_num_seqs}",
                parameter="n",
                code="invalid_value",
            )
        top_k = 0 if fields.top_k is None or fields.top_k == -1 else fields.top_k  # -1 is vLLM's "off"
        parameters = SamplingParameters(
            max_tokens=max_tokens,
            n=fields.n or 1,
            min_tokens=fields.min_tokens or 0,
            temperature=_or_default(fields.temperature, 1.0),
            top_k=min(top_k, self.ready.vocabulary_size),
            top_p=_or_default(fields.top_p, 1.0),
            min_p=_or_default(fields.min_p, 0.0),
            repetition_penalty=_or_default(fields.repetition_penalty, 1.0),
            presence_penalty=_or_default(fields.presence_penalty, 0.0),
            frequency_penalty=_or_default(fields.frequency_penalty, 0.0),
            logit_bias=_token_biases(fields.logit_bias or {}),
            seed=self.seeds.getrandbits(63) if fields.seed is None else fields.seed,
            stop_token_ids=tuple(fields.stop_token_ids or ()),
            ignore_eos=bool(fields.ignore_eos),
        )
        check_sampling_parameters(parameters, vocabulary_size=self.ready.vocabulary_size)
        return parameters

    async def start(
        self,
        request_id: str,
        prompts: Sequence[list[int]],
        sampling: Sequence[SamplingParameters],
        options: OutputOptions,
        *,
        arrival_s: float,
        cache_salt: str | None = None,
        priority: int | None = None,
    ) -> list[Generation]:
        """Submit one request per prompt and return their choices in order; if one is refused, none runs on.

        Raises RequestRefused, QueueFull or EngineDead. Cancelling the call aborts what was submitted.
        """
        # Tasks of this group are awaited here whatever happens, so no sequence is left behind.
        started: list[Generation] = []
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(
                        self._start_one(
                            f"{request_id}-{index}",
                            prompt,
                            parameters,
                            options,
                            arrival_s,
                            cache_salt,
                            priority,
                            started,
                        )
                    )
                    for index, (prompt, parameters) in enumerate(zip(prompts, sampling, strict=True))
                ]
        except BaseException as error:
            for generation in started:
                generation.close()
            if isinstance(error, BaseExceptionGroup):
                first = next((one for one in error.exceptions if isinstance(one, EngineError)), error.exceptions[0])
                raise first from None
            raise
        return [generation for task in tasks for generation in task.result()]

    async def _start_one(
        self,
        request_id: str,
        prompt: list[int],
        sampling: SamplingParameters,
        options: OutputOptions,
        arrival_s: float,
        cache_salt: str | None,
        priority: int | None,
        started: list[Generation],
    ) -> list[Generation]:
        try:
            streams = await self.client.submit(
                request_id, prompt, sampling, cache_salt=cache_salt, priority=priority or 0
            )
        except QueueFull as error:
            self.metrics.increment("admission_rejections", labels=(error.reason,))
            raise
        except RequestRefused:
            self.metrics.increment("admission_rejections", labels=("too_long",))
            raise
        records = self.metrics.start_request(arrival_s=arrival_s, prompt_tokens=len(prompt), choices=len(streams))
        generations = [
            Generation(stream, prompt, sampling, options, tokenizer=self.tokenizer, record=record)
            for stream, record in zip(streams, records, strict=True)
        ]
        started += generations
        return generations


async def _run_sized(work: Callable[[], Result], *, characters: int) -> Result:
    """Run work on a text at once, or in a thread when the text is long, so that other streams flow on."""
    return work() if characters <= INLINE_CHARACTERS else await asyncio.to_thread(work)


def new_id(prefix: str) -> str:
    """Make a request id."""
    return f"{prefix}-{uuid.uuid4().hex}"


def unix_time() -> int:
    """Return the whole seconds that OpenAI's `created` fields hold."""
    return int(time.time())


def _or_default(value: float | None, default: float) -> float:
    return default if value is None else value


def _token_biases(biases: dict[str, float]) -> dict[int, float]:
    """Read JSON's text keys as token ids; raises RequestRefused."""
    wrong = next((key for key in biases if not (key.isascii() and key.isdigit() and len(key) < 19)), None)
    if wrong is not None:
        raise RequestRefused(
            f'logit_bias has the key {wrong!r}; keys are token ids such as "50256"',
            parameter="logit_bias",
            code="invalid_value",
        )
    return {int(key): bias for key, bias in biases.items()}


def _too_long(max_model_len: int, prompt_tokens: int, max_tokens: int | None, parameter: str) -> RequestRefused:
    sentence = f"this model's maximum context length is {max_model_len} tokens, but the prompt has {prompt_tokens}"
    room = max_model_len - prompt_tokens
    if room < 1:
        sentence += f"; shorten it to {max_model_len - 1} tokens or fewer"
    else:
        together = prompt_tokens + (max_tokens or 0)
        sentence += f" and max_tokens is {max_tokens}, {together} together; max_tokens {room} would fit"
    return RequestRefused(sentence, parameter=parameter, code="context_length_exceeded")
