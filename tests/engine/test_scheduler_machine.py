"""Drive scheduler and blocks with random requests, steps and aborts: integrity holds after every one."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from pagefleet.engine.errors import QueueFull, RequestRefused
from pagefleet.engine.scheduler import ScheduledSequence, Scheduler
from pagefleet.engine.sequence import Sequence
from tests.support.sequences import END_TOKEN, PLAIN_TOKEN, make_scheduler, make_sequence


class SchedulerMachine(RuleBasedStateMachine):
    """Few blocks, so that preemption is common."""

    names = Bundle("names")
    scheduler: Scheduler

    @initialize(
        blocks=st.integers(2, 30),
        block_size=st.sampled_from([1, 2, 4, 16]),
        max_num_seqs=st.integers(1, 8),
        spare_tokens=st.integers(0, 24),
        threshold=st.sampled_from([None, 0, 1, 7]),
        queue_limit=st.integers(1, 12),
    )
    def begin(
        self,
        blocks: int,
        block_size: int,
        max_num_seqs: int,
        spare_tokens: int,
        threshold: int | None,
        queue_limit: int,
    ) -> None:
        self.scheduler = make_scheduler(
            blocks=blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + spare_tokens,
            max_model_len=64,
            long_prefill_token_threshold=threshold,
            max_num_queued_reqs=queue_limit,
        )
        self.live: dict[str, Sequence] = {}
        self.count = 0

    @rule(target=names, prompt=st.integers(1, 40), max_tokens=st.integers(1, 30))
    def add(self, prompt: int, max_tokens: int) -> object:
        self.count += 1
        sequence = make_sequence(str(self.count), prompt, max_tokens)
        try:
            self.scheduler.add(sequence)
        except RequestRefused:
            capacity = self.scheduler.blocks.blocks_total * self.scheduler.blocks.block_size
            assert prompt + max_tokens > min(64, capacity)
            return multiple()
        except QueueFull:
            assert self.scheduler.queue_depth >= 1
            return multiple()
        self.live[sequence.request_id] = sequence
        return sequence.request_id

    @rule(name=consumes(names))
    def abort(self, name: str) -> None:
        self.scheduler.abort(name)
        self.live.pop(name, None)

    @rule(ends=st.sets(st.integers(0, 7), max_size=3))
    def step(self, ends: set[int]) -> None:
        oldest = min(self.live.values(), key=lambda sequence: sequence.arrival_s, default=None)
        progress = (oldest.computed_tokens, len(oldest.token_ids)) if oldest else (0, 0)
        step = self.scheduler.schedule(0.0)
        assert step.tokens <= self.scheduler.limits.max_num_batched_tokens
        assert len(step.entries) <= self.scheduler.limits.max_num_seqs
        self.check_entries(step.entries)
        sampled = {
            entry.sequence.request_id: END_TOKEN if index in ends else PLAIN_TOKEN
            for index, entry in enumerate(step.entries)
            if entry.samples
        }
        for sequence in self.scheduler.finish_step(step, dict(sampled)):
            del self.live[sequence.request_id]
        if oldest is not None and oldest.finish_reason is None:
            assert (oldest.computed_tokens, len(oldest.token_ids)) > progress, "the oldest advances in every step"

    def check_entries(self, entries: list[ScheduledSequence]) -> None:
        for entry in entries:
            sequence = entry.sequence
            table = self.scheduler.blocks.table(sequence.request_id)
            assert entry.tokens >= 1
            assert entry.first_position + entry.tokens == sequence.computed_tokens <= len(sequence.token_ids)
            assert len(table) * self.scheduler.blocks.block_size >= sequence.computed_tokens

    @invariant()
    def integrity(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()
            assert self.scheduler.running + self.scheduler.queue_depth == len(self.live)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        most_steps = sum(2 * sequence.most_tokens for sequence in self.live.values()) * 40 + 1
        for _ in range(most_steps):
            if not self.scheduler.has_work():
                break
            self.step(set())
            self.integrity()
        assert not self.scheduler.has_work(), "everything finishes"
        assert self.scheduler.blocks.blocks_free == self.scheduler.blocks.blocks_total


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
