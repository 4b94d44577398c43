"""The start-up stages and how long each took."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pagefleet.engine.messages import StartupProgress, StartupStage


class StageClock:
    """Report each stage as it begins and keep its seconds."""

    def __init__(self, on_progress: Callable[[StartupProgress], None]) -> None:
        self.seconds: dict[str, float] = {}
        self._on_progress = on_progress

    @contextmanager
    def stage(self, name: StartupStage) -> Iterator[Callable[[float | None], None]]:
        """Time one stage; yields a function that reports its progress, from 0 to 1."""
        started_s = time.monotonic()
        self._on_progress(StartupProgress(stage=name))
        yield lambda fraction: self._on_progress(StartupProgress(stage=name, fraction=fraction))
        self.seconds[name] = round(time.monotonic() - started_s, 3)
