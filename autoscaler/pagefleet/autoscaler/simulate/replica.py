"""One engine in simulated time, step by step: token budget, blocks, prefix sharing and preemption.

A step costs the same whatever its batch holds: sequences that decode are counted, not visited. Each is due at the step
in which it ends, and needs a block in every `block_size`-th step, so both are looked up by the step's number.
"""

from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field

from pagefleet.autoscaler.simulate.workload import Arrival
from pagefleet.capacity.step_time import StepTime


@dataclass(frozen=True, kw_only=True)
class EngineModel:
    """What one replica can hold and how fast it is."""

    step: StepTime
    kv_tokens: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    """Tokens of one step: each decoding sequence takes one, prompts share the rest."""
    hash_block_tokens: int = 512

    @property
    def blocks_total(self) -> int:
        """Return the blocks of the cache."""
        return self.kv_tokens // self.block_size


@dataclass(slots=True, eq=False)
class Request:
    """One request on its way through a replica."""

    arrival: Arrival
    first_token_s: float | None = None
    end_s: float | None = None
    _generated: int = 0
    """Tokens that it had when it last lost its blocks."""
    _computed: int = 0
    """Tokens of its prompt, and of what it had generated, that are in the cache."""
    _decode_from: int = 0
    """Step that produced the token after which it decodes."""
    _due_step: int = -1
    _private_blocks: int = 0
    _shared: tuple[int, ...] = ()

    @property
    def mean_gap_s(self) -> float:
        """Return the mean time between two tokens of its answer; 0 where it has but one."""
        gaps = self.arrival.output_tokens - 1
        if gaps < 1 or self.first_token_s is None or self.end_s is None:
            return 0.0
        return (self.end_s - self.first_token_s) / gaps

    @property
    def to_compute(self) -> int:
        """Return the tokens that must be in the cache before the next one comes out."""
        return self.arrival.prompt_tokens + self._generated


@dataclass(slots=True)
class Counters:
    """Count what an engine did since its start, as `/capacity` does."""

    arrivals: int = 0
    prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    finished_output_tokens: int = 0
    finished: int = 0
    preemptions: int = 0
    first_tokens: int = 0
    late_first_tokens: int = 0
    slow_answers: int = 0
    steps: int = 0
    step_s: float = 0.0
    computed_tokens: int = 0
    kv_tokens_read: int = 0
    sequence_steps: int = 0


@dataclass(slots=True, eq=False)
class Replica:
    """Make steps; whoever owns the clock calls `begin_step` and, when its time has passed, `end_step`."""

    model: EngineModel
    ttft_slo_s: float
    itl_slo_s: float
    counters: Counters = field(default_factory=Counters)
    waiting: deque[Request] = field(default_factory=deque)
    in_flight: int = 0
    is_stepping: bool = False
    _step: int = 0
    _decoding: dict[Request, None] = field(default_factory=dict)  # in order of admission
    _prefilling: dict[Request, None] = field(default_factory=dict)
    _due: defaultdict[int, list[Request]] = field(default_factory=lambda: defaultdict(list))
    _block_size: int = 0
    _blocks_total: int = 0
    _growing: list[int] = field(default_factory=list)  # by the step's number modulo the block size
    _context: int = 0  # tokens of decoding sequences in the cache
    _blocks_active: int = 0
    _shared: dict[int, int] = field(default_factory=dict)  # prefix hash -> live sequences that use it
    _cached: OrderedDict[int, None] = field(default_factory=OrderedDict)  # least recently used first
    _finishing_prompts: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._growing = [0] * self.model.block_size
        self._block_size, self._blocks_total = self.model.block_size, self.model.blocks_total

    # ---- what a report shows ----

    @property
    def running(self) -> int:
        """Return the sequences in the batch."""
        return len(self._decoding) + len(self._prefilling) + len(self._finishing_prompts)

    @property
    def blocks_active(self) -> int:
        """Return the blocks that live sequences hold; what only the prefix cache holds is not among them."""
        return self._blocks_active

    @property
    def tokens_active(self) -> int:
        """Return the tokens of live sequences in the cache."""
        return self._context + sum(request._computed for request in self._prefilling)

    @property
    def tokens_queued(self) -> int:
        """Return the prompt tokens of requests not yet admitted."""
        return sum(request.to_compute for request in self.waiting)

    def oldest_waiting_s(self, now_s: float) -> float:
        """Return the age of the oldest request not yet admitted."""
        return now_s - self.waiting[0].arrival.time_s if self.waiting else 0.0

    def prefix_hit_blocks(self, arrival: Arrival) -> int:
        """Return the leading prefix blocks of an arrival that are in the cache."""
        hits = 0
        for number in arrival.prefix_hashes:
            if number not in self._shared and number not in self._cached:
                break
            hits += 1
        return hits

    # ---- life ----

    def submit(self, request: Request) -> None:
        """Take a request into the queue."""
        self.counters.arrivals += 1
        self.in_flight += 1
        self.waiting.append(request)

    def begin_step(self, slowdown: float = 1.0) -> float | None:
        """Form a batch and return the seconds that its step takes; None when there is nothing to do."""
        if self._growing[self._step % self._block_size]:
            self._make_room_for_decoding()
        decoding, prompt_tokens = len(self._decoding), 0
        if self.waiting or self._prefilling:
            prompt_tokens = self._schedule_prompts(max(0, self.model.max_num_batched_tokens - decoding))
        if not decoding and not prompt_tokens:
            return None  # the request at the head does not fit, alone as it is
        took_s = slowdown * self.model.step.total_s(
            steps=1, prefill_tokens=prompt_tokens, kv_tokens=self._context, sequences=decoding
        )
        counters = self.counters
        counters.steps += 1
        counters.step_s += took_s
        counters.computed_tokens += prompt_tokens
        counters.kv_tokens_read += self._context
        counters.sequence_steps += decoding
        self._context += decoding
        self.is_stepping = True
        return took_s

    def end_step(self, now_s: float) -> list[Request]:
        """Hand out the step's tokens and return the requests that have ended."""
        self.is_stepping = False
        ended = []
        for request in self._due.pop(self._step, ()):
            if request._due_step == self._step and request in self._decoding:
                del self._decoding[request]
                self._stop_decoding(request)
                self._finish(request, now_s)
                ended.append(request)
        if self._finishing_prompts:
            ended += self._end_prompts(now_s)
        self._step += 1
        return ended

    # ---- prompts ----

    def _schedule_prompts(self, budget: int) -> int:
        scheduled = 0
        for request in list(self._prefilling):
            if scheduled == budget:
                return scheduled
            scheduled += self._compute(request, budget - scheduled)
        while self.waiting and scheduled < budget and self.running < self.model.max_num_seqs:
            request = self.waiting[0]
            if not self._admit(request):
                break
            self.waiting.popleft()
            self._prefilling[request] = None
            scheduled += self._compute(request, budget - scheduled)
        return scheduled

    def _admit(self, request: Request) -> bool:
        """Give a request the blocks of all that it must compute, or leave it in the queue."""
        model = self.model
        hits = 0 if request._generated else self.prefix_hit_blocks(request.arrival)
        per_hash = model.hash_block_tokens // model.block_size
        prefixes = request.arrival.prefix_hashes
        hit_tokens = min(hits * model.hash_block_tokens, request.to_compute - 1)
        private_tokens = request.to_compute - len(prefixes) * model.hash_block_tokens
        private_blocks = -(-max(0, private_tokens) // model.block_size)
        newly_active = sum(number not in self._shared for number in prefixes) * per_hash
        if self._blocks_active + newly_active + private_blocks > model.blocks_total:
            return False
        for number in prefixes:
            self._shared[number] = self._shared.get(number, 0) + 1
            self._cached.pop(number, None)
        request._shared, request._private_blocks, request._computed = prefixes, private_blocks, hit_tokens
        self._take_blocks(newly_active + private_blocks)
        if not request._generated:
            self.counters.prompt_tokens += request.to_compute
            self.counters.prefix_hit_tokens += hit_tokens
        return True

    def _compute(self, request: Request, budget: int) -> int:
        tokens = min(budget, request.to_compute - request._computed)
        request._computed += tokens
        if request._computed == request.to_compute:
            del self._prefilling[request]
            self._finishing_prompts.append(request)
        return tokens

    def _first_token(self, request: Request, now_s: float) -> None:
        if request.first_token_s is None:
            request.first_token_s = now_s
            self.counters.first_tokens += 1
            self.counters.late_first_tokens += now_s - request.arrival.time_s > self.ttft_slo_s

    # ---- decoding ----

    def _end_prompts(self, now_s: float) -> list[Request]:
        ended = []
        for request in self._finishing_prompts:
            self._first_token(request, now_s)
            if request.arrival.output_tokens <= request._generated + 1:
                self._finish(request, now_s)
                ended.append(request)
            else:
                self._start_decoding(request)
        self._finishing_prompts.clear()
        return ended

    def _start_decoding(self, request: Request) -> None:
        left = request.arrival.output_tokens - request._generated - 1
        request._decode_from = self._step
        request._due_step = self._step + left
        self._due[request._due_step].append(request)
        self._decoding[request] = None
        self._growing[self._phase(request)] += 1
        self._context += request.to_compute

    def _stop_decoding(self, request: Request) -> None:
        self._growing[self._phase(request)] -= 1
        self._context -= request.to_compute + self._step - request._decode_from

    def _phase(self, request: Request) -> int:
        """Return the step, modulo the block size, in which its next token needs a new block."""
        return (request._decode_from + 1 - request.to_compute) % self.model.block_size

    def _make_room_for_decoding(self) -> None:
        needed = self._growing[self._step % self._block_size]
        while needed and self._blocks_active + needed > self._blocks_total:
            self._preempt()
            needed = self._growing[self._step % self._block_size]
        self._take_blocks(needed)

    def _preempt(self) -> None:
        """Take all from the sequence that came last; it is computed again later."""
        self.counters.preemptions += 1
        if self._prefilling:
            request, _ = self._prefilling.popitem()
            self._release(request, 0)
        else:
            request, _ = self._decoding.popitem()
            decoded = self._step - 1 - request._decode_from
            self._growing[self._phase(request)] -= 1
            self._context -= request.to_compute + decoded
            self._release(request, decoded)
            request._generated += decoded + 1
            request._due_step = -1
        self.waiting.appendleft(request)

    # ---- blocks ----

    def _finish(self, request: Request, now_s: float) -> None:
        request.end_s = now_s
        self.in_flight -= 1
        self.counters.finished += 1
        self.counters.finished_output_tokens += request.arrival.output_tokens
        self.counters.slow_answers += request.mean_gap_s > self.itl_slo_s
        self._release(request, max(0, request._due_step - request._decode_from))

    def _take_blocks(self, count: int) -> None:
        self._blocks_active += count
        if not self._cached:
            return
        per_hash = self.model.hash_block_tokens // self.model.block_size
        while self._cached and self._blocks_active + len(self._cached) * per_hash > self.model.blocks_total:
            self._cached.popitem(last=False)

    def _release(self, request: Request, decoded: int) -> None:
        """Give back its blocks after so many decoded tokens; prefixes that nobody else uses stay cached."""
        size = self.model.block_size
        grown = -(-(request.to_compute + decoded) // size) - -(-request.to_compute // size)
        freed = request._private_blocks + grown
        per_hash = self.model.hash_block_tokens // size
        for number in reversed(request._shared):  # the end of a prefix is the first to go
            users = self._shared[number] - 1
            if users:
                self._shared[number] = users
            else:
                del self._shared[number]
                self._cached[number] = None
                freed += per_hash
        self._blocks_active -= freed
        request._shared, request._private_blocks = (), 0
