"""From a request's fields to running sequences: the checks that need the model, and the submission."""

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pagefleet.engine.core_client import CoreClient
from pagefleet.engine.errors import EngineError, QueueFull, RequestRefused
from pagefleet.engine.messages import CoreReady
from pagefleet.engine.metrics import EngineMetrics
from pagefleet.engine.request_record import start_request
from pagefleet.engine.sampling_params import SamplingParameters
from pagefleet.engine.server.arrivals import Arrivals, HandOver
from pagefleet.engine.server.errors import unknown_model
from pagefleet.engine.server.generate import Generation
from pagefleet.engine.server.protocol import ChatMessage, SamplingFields, TemplateFields
from pagefleet.engine.server.sampling import bad_word_tokens, sampling_parameters
from pagefleet.engine.server.text_reader import OutputOptions, TextReader
from pagefleet.engine.tokenizer import Tokenizer

INLINE_CHARACTERS = 2000
"""Shorter texts encode in about half a millisecond, little more than a thread costs."""

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class QueueTerms:
    """How a request waits, and with whom it shares cached prompts."""

    arrival_s: float
    hand_over: HandOver
    priority: int = 0
    cache_salt: str | None = None

    @classmethod
    def of(cls, fields: SamplingFields, *, arrival_s: float, hand_over: HandOver) -> "QueueTerms":
        """Read the terms from a request."""
        return cls(
            arrival_s=arrival_s, hand_over=hand_over, priority=fields.priority or 0, cache_salt=fields.cache_salt
        )


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
    trusts_chat_templates: bool = False
    """Requests may bring their own chat template."""
    preparing: Arrivals = field(default_factory=Arrivals)
    """Requests that were read and are not yet handed to the core."""

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
        self, messages: Sequence[ChatMessage], template: TemplateFields, *, add_special_tokens: bool
    ) -> list[int]:
        """Render and encode a chat; raises RequestRefused. Templates write the special tokens themselves."""
        if template.chat_template is not None and not self.trusts_chat_templates:
            raise RequestRefused(
                "chat_template is a program, and this server runs none that a request brings; leave it out, or start "
                "the server with --trust-request-chat-template",
                parameter="chat_template",
                code="unsupported_parameter",
            )

        def work() -> list[int]:
            text = self.tokenizer.render_chat(
                [message.to_template() for message in messages],
                add_generation_prompt=template.begins_answer,
                continue_final_message=bool(template.continue_final_message),
                chat_template=template.chat_template,
                template_arguments=template.chat_template_kwargs or {},
            )
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

        prompt = await _run_sized(work, characters=sum(len(message.content) + 10 for message in messages))
        if not prompt:
            raise RequestRefused("the messages make an empty prompt", parameter="messages", code="invalid_value")
        return prompt

    def truncate(self, prompt: list[int], *, most_tokens: int | None, max_tokens: int | None) -> list[int]:
        """Keep the end of a prompt that is longer than asked; -1 asks for what the context holds beside the output.

        Raises RequestRefused.
        """
        if most_tokens is None:
            return prompt
        context = self.ready.max_model_len
        if most_tokens > context:
            raise RequestRefused(
                f"truncate_prompt_tokens is {most_tokens}; this model's context is {context} tokens, so at most that "
                "or -1 works",
                parameter="truncate_prompt_tokens",
                code="invalid_value",
            )
        room = context - max(1, max_tokens or 1)
        kept = most_tokens if most_tokens != -1 else max(1, room)
        return prompt[-kept:]

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

    async def sampling(
        self,
        fields: SamplingFields,
        *,
        max_tokens: Sequence[int],
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
    ) -> list[SamplingParameters]:
        """Return one request's parameters for each of `max_tokens`; raises RequestRefused."""
        self._check_scheduling(fields)
        words = fields.bad_words or []
        bad_words = await _run_sized(
            lambda: bad_word_tokens(self.tokenizer, words), characters=sum(len(word) + 20 for word in words)
        )
        return [
            sampling_parameters(
                fields,
                vocabulary_size=self.ready.vocabulary_size,
                eos_token_ids=self.ready.eos_token_ids,
                max_tokens=most,
                seed=self.seeds.getrandbits(63),
                bad_words=bad_words,
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
            )
            for most in max_tokens
        ]

    def _check_scheduling(self, fields: SamplingFields) -> None:
        """Refuse what the engine was not started for; raises RequestRefused."""
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

    async def start(
        self,
        prompts: Sequence[list[int]],
        sampling: Sequence[SamplingParameters],
        options: OutputOptions,
        terms: QueueTerms,
    ) -> list[Generation]:
        """Submit one request per prompt and return their choices in order; if one is refused, none runs on.

        Raises RequestRefused, QueueFull or EngineDead. Cancelling the call aborts what was submitted.
        """
        name = uuid.uuid4().hex  # never the client's own id, which it may use twice at once
        # Tasks of this group are awaited here whatever happens, so no sequence is left behind.
        started: list[Generation] = []
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._start_one(f"{name}-{index}", prompt, parameters, options, terms, started))
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
        terms: QueueTerms,
        started: list[Generation],
    ) -> list[Generation]:
        readers = await _run_sized(
            lambda: [TextReader(self.tokenizer, prompt, options) for _ in range(sampling.choices)],
            characters=4 * len(prompt) * sampling.choices if options.echo_prompt else 0,
        )
        terms.hand_over()
        try:
            streams = await self.client.submit(
                request_id,
                prompt,
                sampling,
                cache_salt=terms.cache_salt,
                priority=terms.priority,
                arrival_s=terms.arrival_s,
            )
        except QueueFull as error:
            self.metrics.increment("admission_rejections", labels=(error.reason,))
            raise
        except RequestRefused:
            self.metrics.increment("admission_rejections", labels=("too_long",))
            raise
        records = start_request(
            self.metrics, arrival_s=terms.arrival_s, prompt_tokens=len(prompt), choices=len(streams)
        )
        generations = [
            Generation(stream, prompt, reader, record=record)
            for stream, reader, record in zip(streams, readers, records, strict=True)
        ]
        started += generations
        return generations


async def _run_sized(work: Callable[[], Result], *, characters: int) -> Result:
    """Run work on a text at once, or in a thread when the text is long, so that other streams flow on."""
    return work() if characters <= INLINE_CHARACTERS else await asyncio.to_thread(work)


def unix_time() -> int:
    """Return the whole seconds that OpenAI's `created` fields hold."""
    return int(time.time())


def _too_long(max_model_len: int, prompt_tokens: int, max_tokens: int | None, parameter: str) -> RequestRefused:
    sentence = f"this model's maximum context length is {max_model_len} tokens, but the prompt has {prompt_tokens}"
    room = max_model_len - prompt_tokens
    if room < 1:
        sentence += f"; shorten it to {max_model_len - 1} tokens or fewer"
    else:
        together = prompt_tokens + (max_tokens or 0)
        sentence += f" and max_tokens is {max_tokens}, {together} together; max_tokens {room} would fit"
    return RequestRefused(sentence, parameter=parameter, code="context_length_exceeded")
