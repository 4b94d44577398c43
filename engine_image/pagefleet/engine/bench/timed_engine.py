"""An engine in this process whose steps alone move the clock, and requests that come at their own times."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

import msgspec
import torch

from pagefleet.capacity.step_fit import StepSample
from pagefleet.engine.bench.arrivals import Arrival
from pagefleet.engine.bench.our_engine import OurEngine
from pagefleet.engine.bench.profile_core import measure_core
from pagefleet.engine.bench.setup import model_folder
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.errors import RequestRefused
from pagefleet.engine.messages import AddRequest, CoreState, Refused
from pagefleet.engine.sampling_params import SamplingParameters

LADDER_CONTEXT = 256
LADDER_STEPS = 16


@dataclass(frozen=True, kw_only=True)
class TimedRequest:
    """Say when a request got its first token and when its last, in seconds after the start."""

    arrival_s: float
    first_token_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class TimedRun:
    """Hold what became of the requests, in order of arrival, and what the engine counted meanwhile."""

    requests: list[TimedRequest]
    steps: int
    computed_tokens: int
    kv_tokens_read: int
    sequence_steps: int

    @property
    def makespan_s(self) -> float:
        """Return when the last one ended."""
        return max(request.end_s for request in self.requests)

    @property
    def mean_ttft_s(self) -> float:
        """Return the mean time to the first token."""
        return mean(request.first_token_s - request.arrival_s for request in self.requests)


class TimedEngine:
    """Load a model once, then measure its ladder and run requests."""

    def __init__(self, config: EngineConfig, *, preset: str) -> None:
        folder = model_folder(config.model, preset)
        self._core = OurEngine(msgspec.structs.replace(config, model=str(folder))).core
        self.info = self._core.info

    def ladder(self) -> list[StepSample]:
        """Return steps of several prompts and batches, each with its mean time: the requests' are as disturbed."""
        most = self.info.max_num_seqs
        batches = sorted({1, max(1, most // 4), max(1, most // 2), most})
        core, context = self._core, min(LADDER_CONTEXT, self.info.max_model_len // 2)
        return list(measure_core(core, batches=batches, context=context, steps=LADDER_STEPS, typical=mean))

    def run(self, arrivals: Sequence[Arrival], on_end: Callable[[], object]) -> TimedRun:
        """Run requests greedily to their ends, in order of arrival; raises RequestRefused when one does not fit.

        The clock stands while no step runs and leaps over gaps. It is the thread's own CPU time where one thread
        computes: what others take of its core is no part of the engine's speed.
        """
        core = self._core
        core.reset_prefix_cache()
        clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
        left = deque(enumerate(arrivals))
        first_s: dict[int, float] = {}
        end_s: dict[int, float] = {}
        before, now_s = core.state(), 0.0
        while left or core.has_work():
            if not core.has_work():
                now_s = max(now_s, left[0][1].at_s)
            while left and left[0][1].at_s <= now_s:
                self._add(*left.popleft())
            began_s = clock()
            step = core.step()
            now_s += clock() - began_s
            for output in step.outputs:
                number = int(output.request_id)
                first_s.setdefault(number, now_s)
                if output.finish_reason is not None:
                    end_s[number] = now_s
                    on_end()
        requests = [
            TimedRequest(arrival_s=arrival.at_s, first_token_s=first_s[number], end_s=end_s[number])
            for number, arrival in enumerate(arrivals)
        ]
        return _counted(requests, before, core.state())

    def _add(self, number: int, arrival: Arrival) -> None:
        sampling = SamplingParameters(max_tokens=arrival.output_tokens, temperature=0.0, ignore_eos=True)
        prompt = arrival.prompt(number, self.info.vocabulary_size)
        answer = self._core.add(AddRequest(request_id=str(number), prompt_token_ids=prompt, sampling=sampling))
        if isinstance(answer, Refused):
            raise RequestRefused(answer.message)


def _counted(requests: list[TimedRequest], before: CoreState, after: CoreState) -> TimedRun:
    return TimedRun(
        requests=requests,
        steps=after.steps_total - before.steps_total,
        computed_tokens=after.computed_tokens_total - before.computed_tokens_total,
        kv_tokens_read=after.kv_tokens_read_total - before.kv_tokens_read_total,
        sequence_steps=after.sequence_steps_total - before.sequence_steps_total,
    )
