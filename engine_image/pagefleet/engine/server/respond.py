"""Answer with running sequences, as one JSON body or as a stream."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from pagefleet.engine.errors import EngineError
from pagefleet.engine.metrics import EngineMetrics
from pagefleet.engine.server.errors import as_http_error
from pagefleet.engine.server.generate import Generation
from pagefleet.engine.server.protocol import SamplingFields
from pagefleet.engine.server.shapes import Shape
from pagefleet.engine.server.streaming import DONE, event
from pagefleet.engine.server.text_reader import Delta, join


def usage_of(generations: Sequence[Generation]) -> dict[str, Any]:
    """Return OpenAI's usage object for all sequences of a request."""
    prompt = sum(generation.prompt_tokens for generation in generations)
    completion = sum(generation.completion_tokens for generation in generations)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(generation.cached_tokens for generation in generations)},
    }


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One request's sequences on their way out."""

    request_id: str
    created: int
    model_name: str
    shape: Shape
    generations: Sequence[Generation]
    metrics: EngineMetrics

    def close(self) -> None:
        """Abort every sequence that has not ended."""
        for generation in self.generations:
            generation.close()

    async def whole(self) -> dict[str, Any]:
        """Run all sequences to their ends and return the response body; raises EngineError."""
        choices: list[dict[str, Any]] = []
        for index, generation in enumerate(self.generations):
            delta = join([delta async for delta in generation.deltas()])
            choices.append(self.shape.choice(index, delta, generation))
        return {
            **self._head(self.shape.object_name),
            "choices": choices,
            "usage": usage_of(self.generations),
            **self.shape.head(self.generations[0]),
        }

    async def events(self, fields: SamplingFields) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events: pieces, one end per choice, usage if asked for, and `[DONE]`.

        When the engine fails under a running stream, the last event is an error and there is no end and no `[DONE]`.
        """
        options = fields.stream_options
        wants_usage = options is not None and bool(options.include_usage)
        wants_running_usage = options is not None and bool(options.continuous_usage_stats)

        def chunk(choice: dict[str, Any], head: dict[str, Any]) -> bytes:
            data = {**self._head(self.shape.chunk_object_name), "choices": [choice], **head}
            if wants_usage:
                data["usage"] = usage_of(self.generations) if wants_running_usage else None
            return event(data)

        try:
            async with aclosing(self._chunks(chunk)) as chunks:
                async for data in chunks:
                    yield data
        except EngineError as error:
            http_error = as_http_error(error)
            self.metrics.increment("request_errors", labels=(str(http_error.status),))
            yield event(http_error.body())
            return
        if wants_usage:
            head = self._head(self.shape.chunk_object_name)
            yield event({**head, "choices": [], "usage": usage_of(self.generations)})
        yield DONE

    async def _chunks(self, chunk: Callable[[dict[str, Any], dict[str, Any]], bytes]) -> AsyncGenerator[bytes, None]:
        has_begun: set[int] = set()
        async with aclosing(_merge(self.generations)) as merged:
            async for index, delta in merged:
                generation = self.generations[index]
                is_first = index not in has_begun
                head = self.shape.head(generation) if is_first else {}
                # With the first token and not before, so that a client's time to first chunk means something.
                if is_first and (opening := self.shape.opening(index)) is not None:
                    yield chunk(opening, head)
                    head = {}
                has_begun.add(index)
                yield chunk(self.shape.chunk_choice(index, delta, generation, is_first=is_first), head)

    def _head(self, object_name: str) -> dict[str, Any]:
        return {"id": self.request_id, "object": object_name, "created": self.created, "model": self.model_name}


async def _merge(generations: Sequence[Generation]) -> AsyncGenerator[tuple[int, Delta], None]:
    """Yield the deltas of all sequences as they come; raises the first error of any."""
    if len(generations) == 1:
        async for delta in generations[0].deltas():
            yield 0, delta
        return
    arrived: asyncio.Queue[tuple[int, Delta | EngineError | None]] = asyncio.Queue()

    async def pump(index: int, generation: Generation) -> None:
        try:
            async for delta in generation.deltas():
                arrived.put_nowait((index, delta))
        except EngineError as error:
            arrived.put_nowait((index, error))
        else:
            arrived.put_nowait((index, None))

    tasks = [asyncio.ensure_future(pump(index, generation)) for index, generation in enumerate(generations)]
    try:
        open_count = len(tasks)
        while open_count:
            index, item = await arrived.get()
            if isinstance(item, EngineError):
                raise item
            if item is None:
                open_count -= 1
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
