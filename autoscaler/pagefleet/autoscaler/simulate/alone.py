"""One simulated engine by itself, without a fleet and its control: what a real engine is compared with. Pure."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pagefleet.autoscaler.simulate.replica import Counters, EngineModel, Replica, Request
from pagefleet.autoscaler.simulate.workload import Arrival


@dataclass(frozen=True, kw_only=True)
class Played:
    """Hold what became of the requests, in order of arrival."""

    requests: tuple[Request, ...]
    counters: Counters

    @property
    def makespan_s(self) -> float:
        """Return when the last one ended."""
        return max(request.end_s or 0.0 for request in self.requests)

    @property
    def mean_ttft_s(self) -> float:
        """Return the mean time to the first token."""
        return sum((one.first_token_s or 0.0) - one.arrival.time_s for one in self.requests) / len(self.requests)


def play_alone(model: EngineModel, arrivals: Sequence[Arrival]) -> Played:
    """Serve arrivals, in order of time, to their ends; raises ValueError when one needs more blocks than there are."""
    for arrival in arrivals:
        if (tokens := arrival.prompt_tokens + arrival.output_tokens) > model.kv_tokens:
            raise ValueError(f"a request of {tokens} tokens never fits: the engine holds {model.kv_tokens}")
    replica = Replica(model, ttft_slo_s=0.0, itl_slo_s=0.0)
    requests = tuple(Request(arrival) for arrival in arrivals)
    left, now_s = deque(requests), 0.0
    while left or replica.in_flight:
        while left and left[0].arrival.time_s <= now_s:
            replica.submit(left.popleft())
        took_s = replica.begin_step()
        if took_s is None:
            now_s = left[0].arrival.time_s
            continue
        now_s += took_s
        replica.end_step(now_s)
    return Played(requests=requests, counters=replica.counters)
