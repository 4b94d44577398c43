"""Requests of all kinds to an engine, for as long as a test looks at it."""

import threading
from types import TracebackType
from typing import Self

import httpx

PAUSE_S = 0.2
"""After an answer, so that a client leaves some of the machine to what watches it."""
SHARED_PREFIX = "once upon a time there was a little girl who lived in a little house near the woods " * 3


class Load:
    """Some clients that stream, share a prefix, go away, and ask for what is refused."""

    def __init__(self, url: str, clients: int = 5) -> None:
        self._stopping = threading.Event()
        self._url = url
        self._threads = [threading.Thread(target=self._ask, args=(number,), daemon=True) for number in range(clients)]

    def _ask(self, client: int) -> None:
        turn = 0
        with httpx.Client(base_url=self._url, timeout=30) as http:
            while not self._stopping.is_set():
                turn += 1
                prompt = f"{SHARED_PREFIX} {client} {turn}"
                body = {"prompt": prompt, "max_tokens": 16 + 8 * client, "ignore_eos": True}
                if client == 0:
                    http.post("/v1/completions", json={"prompt": "x", "max_tokens": 10**6})  # refused
                    self._stopping.wait(0.5)
                elif client == 1:
                    with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                        next(answer.iter_lines())  # and goes away
                    self._stopping.wait(PAUSE_S)
                else:
                    http.post("/v1/completions", json=body).raise_for_status()
                    self._stopping.wait(PAUSE_S)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
