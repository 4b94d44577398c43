"""One running sequence as its reader sees it, from the core's outputs to its end, whatever that is."""

from collections.abc import AsyncIterator

from pagefleet.engine.core_client import RequestStream
from pagefleet.engine.errors import EngineError
from pagefleet.engine.logprobs import TokenLogprobs
from pagefleet.engine.request_record import ChoiceRecord
from pagefleet.engine.server.text_reader import Delta, TextReader


class Generation:
    """Turn the outputs of one sequence into text; `close()` must be called, whatever happens."""

    def __init__(
        self, stream: RequestStream, prompt_token_ids: list[int], reader: TextReader, *, record: ChoiceRecord
    ) -> None:
        self.prompt_token_ids = prompt_token_ids
        self.prompt_logprobs: list[TokenLogprobs] = []
        """Scores of the prompt's tokens from the second on, once the first output is there, if they were asked for."""
        self.cached_tokens = 0
        """Prompt tokens found in the prefix cache."""
        self._stream = stream
        self._record = record
        self._reader = reader

    @property
    def prompt_tokens(self) -> int:
        """Count the prompt's tokens: the choices of one prompt share it, and it is counted with the first."""
        return len(self.prompt_token_ids) if self._stream.index == 0 else 0

    @property
    def completion_tokens(self) -> int:
        """Count the tokens generated, up to and including the one that ended the text."""
        return self._reader.completion_tokens

    async def deltas(self) -> AsyncIterator[Delta]:
        """Yield one delta per output of the core, the last with a finish reason; raises EngineError."""
        try:
            async for output in self._stream:
                if output.finish_reason == "error":
                    raise EngineError("the engine failed on this sequence")
                if output.cached_tokens is not None and output.index == 0:
                    self.cached_tokens = output.cached_tokens
                if output.prompt_logprobs is not None:
                    self.prompt_logprobs = output.prompt_logprobs
                delta = self._reader.read(output)
                self._record.output(
                    len(delta.tokens), queue_time_s=output.queue_time_s, prefill_time_s=output.prefill_time_s
                )
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
