"""Where the time of a step goes: timers around methods of a core that are there only while they are entered.

A step has three parts. *Scheduling* is `Scheduler.schedule` and `finish_step`. The *model* is its forward pass with
the calls between its kernels, its logits and the choice of tokens among them. *Python* is all the rest: rows, block
tables, what sampling needs, reporting.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

from pagefleet.engine import sampler
from pagefleet.engine.bench.replaced import replaced
from pagefleet.engine.core import EngineCore
from pagefleet.engine.messages import StepOutputs


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """Hold the seconds of one step."""

    wall_s: float
    cpu_s: float
    """CPU time of the process, all its threads together; all that follow are of the thread that steps."""
    scheduling_s: float
    model_s: float
    python_s: float


class PartTimers(AbstractContextManager["PartTimers"]):
    """Time the steps of one core, which nobody else steps meanwhile."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._scheduling_s = self._model_s = 0.0
        self._patches = ExitStack()

    def __enter__(self) -> "PartTimers":
        model = self._core._runner._model
        self._wrap(self._core.scheduler, ("schedule", "finish_step"), self._add_scheduling)
        self._wrap(model, ("forward", "logits"), self._add_model)
        self._wrap(sampler, ("argmax", "draw"), self._add_model)
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def step(self) -> tuple[StepOutputs, StepParts]:
        """Compute a step and return what it produced and took."""
        self._scheduling_s = self._model_s = 0.0
        wall_s, cpu_s, thread_s = time.perf_counter(), time.process_time(), time.thread_time()
        outputs = self._core.step()
        thread_s = time.thread_time() - thread_s
        parts = StepParts(
            cpu_s=time.process_time() - cpu_s,
            wall_s=time.perf_counter() - wall_s,
            scheduling_s=self._scheduling_s,
            model_s=self._model_s,
            python_s=thread_s - self._scheduling_s - self._model_s,
        )
        return outputs, parts

    def _add_scheduling(self, seconds: float) -> None:
        self._scheduling_s += seconds

    def _add_model(self, seconds: float) -> None:
        self._model_s += seconds

    def _wrap(self, owner: object, names: Sequence[str], add: Callable[[float], None]) -> None:
        for name in names:
            timed = _timed(getattr(owner, name), add)
            self._patches.enter_context(replaced(owner, name, timed))


def _timed(function: Callable[..., Any], add: Callable[[float], None]) -> Callable[..., Any]:
    def timed(*arguments: Any, **named: Any) -> Any:
        started_s = time.thread_time()
        result = function(*arguments, **named)
        add(time.thread_time() - started_s)
        return result

    return timed
