"""One running sequence as its reader sees it: text, counted tokens, and why it ended."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from pagefleet.engine.core_client import RequestStream
from pagefleet.engine.detokenizer import Detokenizer
from pagefleet.engine.errors import EngineError
from pagefleet.engine.messages import RequestOutput
from pagefleet.engine.metrics import ChoiceRecord
from pagefleet.engine.sampling_params import SamplingParameters
from pagefleet.engine.server.protocol import SamplingFields
from pagefleet.engine.stop_strings import StopStringFilter
from pagefleet.engine.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How tokens become text."""

    stop: tuple[str, ...] = ()
    include_stop_in_output: bool = False
    skip_special_tokens: bool = True

    @classmethod
    def of(cls, fields: SamplingFields) -> "OutputOptions":
        """Read the options from a request."""
        return cls(
            stop=tuple(fields.stop or ()),
            include_stop_in_output=bool(fields.include_stop_str_in_output),
            skip_special_tokens=fields.skip_special_tokens is not False,
        )


@dataclass(frozen=True)
class Delta:
    """What one output adds. `text` is empty while a character or a possible stop string is incomplete."""

    text: str
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """The stop string or the request's own stop token that ended the text (vLLM's field)."""


class Generation:
    """Turn the outputs of one sequence into text; `close()` must be called, whatever happens."""

    def __init__(
        self,
        stream: RequestStream,
        prompt_token_ids: list[int],
        sampling: SamplingParameters,
        options: OutputOptions,
        *,
        tokenizer: Tokenizer,
        record: ChoiceRecord,
    ) -> None:
        # The choices of one prompt share it, and it is counted once: with the first.
        self.prompt_tokens = len(prompt_token_ids) if stream.index == 0 else 0
        self.cached_tokens = 0
        """Prompt tokens found in the prefix cache."""
        self.completion_tokens = 0
        """Tokens generated, up to and including the one that ended the text."""
        self._stream = stream
        self._record = record
        self._min_tokens = sampling.min_tokens
        self._include_stop_in_output = options.include_stop_in_output
        self._detokenizer = Detokenizer(tokenizer, prompt_token_ids, skip_special_tokens=options.skip_special_tokens)
        self._stops = StopStringFilter(options.stop, include_in_output=options.include_stop_in_output)

    async def deltas(self) -> AsyncIterator[Delta]:
        """Yield one delta per output of the core, the last with a finish reason; raises EngineError."""
        try:
            async for output in self._stream:
                delta = self._take(output)
                if delta.finish_reason is not None:
                    self._stream.abort()  # a stop string ends the text while the core goes on
                    self._record.finish(delta.finish_reason)
                yield delta
                if delta.finish_reason is not None:
                    return
        except EngineError:
            self._record.finish("error")
            raise

    def close(self) -> None:
        """Abort the sequence in the core unless it has ended."""
        self._stream.abort()
        self._record.finish("abort")

    def _take(self, output: RequestOutput) -> Delta:
        if output.finish_reason == "error":
            raise EngineError("the engine failed on this sequence")
        if output.cached_tokens is not None and output.index == 0:
            self.cached_tokens = output.cached_tokens
        before = self.completion_tokens
        text = self._read_tokens(output)
        if output.finish_reason is not None and self._stops.matched is None:
            text += self._stops.feed(self._detokenizer.flush(), may_stop=self._may_stop)
            if self._stops.matched is None:
                text += self._stops.finish()
        self._record.output(
            self.completion_tokens - before, queue_time_s=output.queue_time_s, prefill_time_s=output.prefill_time_s
        )
        if self._stops.matched is not None:
            return Delta(text, "stop", self._stops.matched)
        return Delta(text, output.finish_reason, output.stop_token_id)

    def _read_tokens(self, output: RequestOutput) -> str:
        """Decode tokens up to the one that completes a stop string; a stop token itself is no text."""
        text = ""
        tokens = output.new_token_ids
        is_last_silent = output.finish_reason == "stop" and not self._include_stop_in_output
        for index, token in enumerate(tokens):
            self.completion_tokens += 1
            if is_last_silent and index == len(tokens) - 1:
                break
            text += self._stops.feed(self._detokenizer.append(token), may_stop=self._may_stop)
            if self._stops.matched is not None:
                break
        return text

    @property
    def _may_stop(self) -> bool:
        return self.completion_tokens > self._min_tokens
