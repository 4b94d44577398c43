"""Drive scheduler and blocks with random requests, steps and aborts: integrity holds after every one.

Prompts come from few tokens and few salts, so that many share beginnings; `BlockMemory` checks what everyone reads.
"""

from typing import Any, get_args

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from pagefleet.engine.beams import Candidates
from pagefleet.engine.capacity_policies import CapacityPolicyName
from pagefleet.engine.errors import QueueFull, RequestRefused
from pagefleet.engine.scheduled_step import ScheduledSequence
from pagefleet.engine.scheduler import Scheduler
from pagefleet.engine.sequence import Sequence
from tests.support.block_memory import BlockMemory
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
        has_prefix_cache=st.booleans(),
        capacity_policy=st.sampled_from(get_args(CapacityPolicyName)),
        scheduling_policy=st.sampled_from(["fcfs", "priority"]),
        batching=st.sampled_from(["continuous", "continuous", "static"]),
        sink_blocks=st.sampled_from([None, None, 1, 2]),
    )
    def begin(
        self,
        blocks: int,
        block_size: int,
        max_num_seqs: int,
        spare_tokens: int,
        threshold: int | None,
        queue_limit: int,
        has_prefix_cache: bool,
        capacity_policy: CapacityPolicyName,
        scheduling_policy: str,
        batching: str,
        sink_blocks: int | None,
    ) -> None:
        self.scheduler = make_scheduler(
            blocks=blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + spare_tokens,
            max_model_len=64,
            long_prefill_token_threshold=threshold,
            max_num_queued_reqs=queue_limit,
            has_prefix_cache=has_prefix_cache,
            capacity_policy=capacity_policy,
            scheduling_policy=scheduling_policy,
            batching=batching,
            sink_blocks=sink_blocks,
        )
        self.memory = BlockMemory(block_size, self.scheduler.blocks.plain_slots)
        self.live: dict[str, Sequence] = {}
        self.choices: dict[str, set[int]] = {}
        self.count = 0

    @rule(
        target=names,
        prompt=st.integers(1, 40),
        own=st.integers(0, 2),
        max_tokens=st.integers(1, 30),
        salt=st.sampled_from([None, None, "tenant"]),
        n=st.sampled_from([1, 1, 1, 2, 5]),
        beam_width=st.sampled_from([0, 0, 0, 1, 3]),
        priority=st.integers(-1, 1),
    )
    def add(
        self, prompt: int, own: int, max_tokens: int, salt: str | None, n: int, beam_width: int, priority: int
    ) -> object:
        self.count += 1
        # Equal up to the last two tokens, which make some prompts differ late.
        token_ids = [PLAIN_TOKEN] * max(0, prompt - 2) + [own] * min(2, prompt)
        kind: dict[str, Any] = {"use_beam_search": True, "beam_width": beam_width} if beam_width else {"n": n}
        sequence = make_sequence(str(self.count), token_ids, max_tokens, cache_salt=salt, priority=priority, **kind)
        choices = sequence.sampling.choices
        try:
            self.scheduler.add(sequence)
        except RequestRefused:
            capacity = self.scheduler.blocks.blocks_total * self.scheduler.blocks.block_size
            assert prompt + max_tokens > min(64, capacity) or choices > 1
            return multiple()
        except QueueFull:
            assert self.scheduler.queue_depth >= 1
            return multiple()
        self.live[sequence.request_id] = sequence
        self.choices[sequence.request_id] = set(range(choices))
        return sequence.request_id

    @rule(name=consumes(names))
    def abort(self, name: str) -> None:
        self.scheduler.abort(name)
        self.choices.pop(name, None)
        self.live.pop(name, None)

    @rule(name=names, index=st.integers(0, 4))
    def abort_choice(self, name: str, index: int) -> None:
        self.scheduler.abort_choice(name, index)
        self.end_choice(name, index)

    def end_choice(self, name: str, index: int) -> None:
        if name in self.choices:
            self.choices[name].discard(index)
            if not self.choices[name]:
                del self.choices[name], self.live[name]

    @rule(ends=st.sets(st.integers(0, 7), max_size=3), failures=st.sets(st.integers(0, 30), max_size=1))
    def step(self, ends: set[int], failures: set[int]) -> None:
        running = [sequence for sequence in self.scheduler.sequences() if sequence.computed_tokens]
        oldest = min(running, key=lambda sequence: sequence.rank, default=None)
        progress = (len(oldest.token_ids), oldest.computed_tokens) if oldest else (0, 0)
        step = self.scheduler.schedule(0.0)
        assert not (step.preempted and self.scheduler.limits.capacity_policy == "no-evict")
        assert sum(self.scheduler.waiting_by_reason.values()) == sum(
            not sequence.computed_tokens for sequence in self.scheduler.sequences()
        ), "every sequence that waits has a reason"
        assert step.tokens <= self.scheduler.limits.max_num_batched_tokens
        assert sum(len(entry.sequences) for entry in step.entries) <= self.scheduler.limits.max_num_seqs
        self.check_entries(step.entries)
        failing = {entry.sequence.sequence_id for index, entry in enumerate(step.entries) if index in failures}
        self.memory.execute(step, self.scheduler.blocks.table, failing)
        sampled: dict[str, int | None] = dict.fromkeys(failing)
        for index, entry in enumerate(step.entries):
            for choice, sequence in enumerate(entry.sequences if entry.samples else []):
                token = END_TOKEN if index in ends else PLAIN_TOKEN + choice
                if sequence.beams is not None:
                    likes = [token] + [(sequence.index + other) % 5 for other in range(5)]
                    scores = [-1.0 - (index + 2 * rank) % 7 for rank in range(6)]
                    sequence.beams.candidates[sequence.index] = Candidates(likes, sorted(scores, reverse=True))
                sampled[sequence.sequence_id] = None if entry.sequence.sequence_id in failing else token
        for sequence in self.scheduler.finish_step(step, sampled):
            self.end_choice(sequence.request_id, sequence.index)
        if oldest is not None and oldest.finish_reason is None and oldest.beams is None:
            assert (len(oldest.token_ids), oldest.computed_tokens) > progress, "the first in rank always advances"

    def check_entries(self, entries: list[ScheduledSequence]) -> None:
        for entry in entries:
            sequence = entry.sequence
            table = self.scheduler.blocks.table(sequence.sequence_id)
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
        most_steps = (
            sum(2 * sequence.most_tokens * sequence.sampling.choices for sequence in self.live.values()) * 40 + 1
        )
        for _ in range(most_steps):
            if not self.scheduler.has_work():
                break
            self.step(set(), set())
            self.integrity()
        assert not self.scheduler.has_work(), "everything finishes"
        assert self.scheduler.blocks.blocks_available == self.scheduler.blocks.blocks_total


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
