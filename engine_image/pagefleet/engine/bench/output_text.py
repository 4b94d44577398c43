"""The text of a run's outputs, read as the server reads it: detokenised token by token, with a stop string in mind."""

import time
from collections.abc import Iterable, Sequence

from pagefleet.engine.bench.workload import BenchRequest
from pagefleet.engine.messages import RequestOutput
from pagefleet.engine.server.text_reader import OutputOptions, TextReader
from pagefleet.engine.tokenizer import Tokenizer

STOP_STRING = "\n\nUser:\ud800"
"""Begins as stop strings of chats do, so that text is held back, and ends in half a character, which no text holds."""


class OutputText:
    """Read the outputs of all requests of one run."""

    def __init__(self, tokenizer: Tokenizer, requests: Sequence[BenchRequest]) -> None:
        self.cpu_s = 0.0
        """CPU time that reading has taken."""
        options = OutputOptions(stop=(STOP_STRING,))
        self._readers = [TextReader(tokenizer, request.prompt_token_ids, options) for request in requests]
        self._pieces: list[list[str]] = [[] for _ in requests]

    def read(self, outputs: Iterable[RequestOutput]) -> None:
        """Take what one step produced."""
        started_s = time.thread_time()
        for output in outputs:
            index = int(output.request_id)
            self._pieces[index].append(self._readers[index].read(output).text)
        self.cpu_s += time.thread_time() - started_s

    def texts(self) -> list[str]:
        """Return the text of each request so far."""
        return ["".join(pieces) for pieces in self._pieces]
