"""Turn the hub client's progress bars into one fraction."""

import threading
from collections.abc import Callable
from typing import Any

from tqdm.auto import tqdm

SMALLEST_STEP = 0.01
"""A percent: finer progress would only fill the socket."""


def progress_bar_class(on_progress: Callable[[float | None], None]) -> type[Any]:
    """Return a silent bar class that adds up all byte bars and reports the share that is there."""
    lock = threading.Lock()
    done: dict[int, float] = {}
    totals: dict[int, float] = {}
    reported = [0.0]

    class ProgressBar(tqdm):  # type: ignore[type-arg]
        """Count bytes; the bars that count files are ignored."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts_bytes = kwargs.get("unit") == "B"
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "disable": False, "file": _Nowhere()})

        def display(self, *_args: Any, **_kwargs: Any) -> None:
            """Draw nothing."""

        def update(self, n: float | None = 1) -> bool | None:
            """Count and report."""
            result = super().update(n)
            if self._counts_bytes:
                with lock:
                    done[id(self)], totals[id(self)] = float(self.n), float(self.total or 0)
                    total = sum(totals.values())
                    fraction = sum(done.values()) / total if total else 0.0
                    is_news = fraction - reported[0] >= SMALLEST_STEP
                    if is_news:
                        reported[0] = fraction
                if is_news:
                    on_progress(min(1.0, fraction))
            return result

    return ProgressBar


class _Nowhere:
    """Swallow what a bar writes."""

    def write(self, _text: str) -> None:
        """Drop the text."""

    def flush(self) -> None:
        """Do nothing."""
