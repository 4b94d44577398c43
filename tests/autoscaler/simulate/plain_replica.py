"""A replica that visits every sequence in every step: slow, plain, and the measure of the fast one."""

from dataclasses import dataclass

from pagefleet.autoscaler.simulate.replica import EngineModel
from pagefleet.autoscaler.simulate.workload import Arrival


@dataclass(eq=False)
class PlainRequest:
    arrival: Arrival
    generated: int = 0
    in_cache: int = 0
    to_compute: int = 0
    first_token_s: float | None = None
    end_s: float | None = None


class PlainReplica:
    """No prefix sharing."""

    def __init__(self, model: EngineModel) -> None:
        self.model = model
        self.waiting: list[PlainRequest] = []
        self.running: list[PlainRequest] = []
        self.preemptions = 0

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.model.block_size)

    def held(self) -> int:
        return sum(self.blocks(max(request.to_compute, request.in_cache)) for request in self.running)

    def is_decoding(self, request: PlainRequest) -> bool:
        return request.in_cache >= request.to_compute

    def step(self) -> tuple[float, list[PlainRequest]] | None:
        """Return the seconds of one step and the requests that get a token at its end."""
        while True:
            decoding = [request for request in self.running if self.is_decoding(request)]
            growth = sum(self.blocks(request.in_cache + 1) - self.blocks(request.in_cache) for request in decoding)
            if not growth or self.held() + growth <= self.model.blocks_total:
                break
            prefilling = [request for request in self.running if not self.is_decoding(request)]
            victim = (prefilling or self.running)[-1]
            self.running.remove(victim)
            victim.in_cache = 0
            victim.to_compute = victim.arrival.prompt_tokens + victim.generated
            self.waiting.insert(0, victim)
            self.preemptions += 1
        context = sum(request.in_cache for request in decoding)
        for request in decoding:
            request.in_cache += 1
        budget = max(0, self.model.max_num_batched_tokens - len(decoding))
        prompt_tokens, got_token = 0, list(decoding)
        for request in [request for request in self.running if not self.is_decoding(request)]:
            prompt_tokens += self._compute(request, budget - prompt_tokens, got_token)
        while self.waiting and prompt_tokens < budget and len(self.running) < self.model.max_num_seqs:
            request = self.waiting[0]
            request.to_compute = request.arrival.prompt_tokens + request.generated
            if self.held() + self.blocks(request.to_compute) > self.model.blocks_total:
                break
            self.running.append(self.waiting.pop(0))
            prompt_tokens += self._compute(request, budget - prompt_tokens, got_token)
        if not decoding and not prompt_tokens:
            return None
        step = self.model.step
        took_s = (
            step.base_s
            + step.prefill_token_s * prompt_tokens
            + step.kv_token_s * context
            + step.sequence_s * len(decoding)
        )
        return took_s, got_token

    def _compute(self, request: PlainRequest, budget: int, got_token: list[PlainRequest]) -> int:
        tokens = min(budget, request.to_compute - request.in_cache)
        request.in_cache += tokens
        if tokens and self.is_decoding(request):
            got_token.append(request)
        return tokens

    def end(self, got_token: list[PlainRequest], now_s: float) -> None:
        for request in got_token:
            request.generated += 1
            if request.first_token_s is None:
                request.first_token_s = now_s
            if request.generated == request.arrival.output_tokens:
                request.end_s = now_s
                self.running.remove(request)
        # A sequence keeps its place in the order in which it began to decode.
        fresh = [request for request in got_token if request in self.running and request.in_cache == request.to_compute]
        for request in fresh:
            self.running.remove(request)
            self.running.append(request)
