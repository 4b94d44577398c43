"""Decide who gets how many tokens of the next step: one rule for prefill, decode and resume.

Every step hands out at most `max_num_batched_tokens` tokens so that each sequence's computed tokens catch up with its
known ones. The order within a step:

1. Running sequences with one token to go, so that a decode advances in every step.
2. Running sequences with more to go, oldest first, each capped so that one long prompt cannot take the whole step.
3. Waiting sequences in order of arrival, if nothing was preempted in this step and the whole known sequence fits into
   blocks that nobody else counts on. (Admitting on the first chunk alone makes two long prompts evict each other.)

When a running sequence finds no block, the youngest running one is preempted: its blocks are freed, it goes back to
the front of the queue and is computed again later. So every running sequence is older than every waiting one, and the
oldest always advances.

Pure: no clock, no I/O. The algorithm is vLLM V1's, with the admission rule of its `reserve full input` mode.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from pagefleet.engine.blocks import BlockManager, IntegrityError
from pagefleet.engine.errors import QueueFull, RequestRefused
from pagefleet.engine.sequence import Sequence

LONG_PREFILL_SHARE = 4
"""With this many live sequences or more, one prompt gets at most a quarter of the budget."""


@dataclass(frozen=True, kw_only=True)
class SchedulerLimits:
    """Bound the scheduler."""

    max_num_seqs: int
    """Sequences that run at once."""
    max_num_batched_tokens: int
    """Tokens of one step."""
    max_model_len: int
    """Tokens of one sequence, prompt and output."""
    long_prefill_token_threshold: int | None = None
    """Tokens of one prompt in one step; None adapts to the number of live sequences, 0 sets no cap."""
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None

    def prefill_cap(self, live_sequences: int) -> int:
        """Return how many tokens one prompt may get in a step in which so many sequences want some."""
        if self.long_prefill_token_threshold is None:
            return max(1, self.max_num_batched_tokens // max(1, min(live_sequences, LONG_PREFILL_SHARE)))
        return self.long_prefill_token_threshold or self.max_num_batched_tokens


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """Give `tokens` tokens of the step, from position `first_position` on, to one sequence."""

    sequence: Sequence
    first_position: int
    tokens: int

    @property
    def samples(self) -> bool:
        """Tell whether the step reaches the last known token and so samples the next one."""
        return self.first_position + self.tokens == len(self.sequence.token_ids)


@dataclass(slots=True)
class ScheduledStep:
    """List what one forward pass computes."""

    entries: list[ScheduledSequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Count the tokens of the step."""
        return sum(entry.tokens for entry in self.entries)


class Scheduler:
    """Hold the waiting and the running sequences."""

    def __init__(self, limits: SchedulerLimits, blocks: BlockManager, eos_token_ids: frozenset[int]) -> None:
        self.limits = limits
        self.blocks = blocks
        self.preemptions_total = 0
        self._eos_token_ids = eos_token_ids
        self._waiting: OrderedDict[str, Sequence] = OrderedDict()
        self._running: OrderedDict[str, Sequence] = OrderedDict()
        self._tokens_queued = 0

    # ---- what is there -----------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Count the admitted sequences."""
        return len(self._running)

    @property
    def queue_depth(self) -> int:
        """Count the sequences that wait, preempted ones included."""
        return len(self._waiting)

    @property
    def tokens_queued(self) -> int:
        """Count the known tokens of the sequences that wait."""
        return self._tokens_queued

    @property
    def tokens_active(self) -> int:
        """Count the tokens whose keys and values are in active blocks."""
        return sum(sequence.computed_tokens for sequence in self._running.values())

    @property
    def oldest_waiting_s(self) -> float | None:
        """Return when the oldest waiting sequence arrived; None when none waits."""
        return next(iter(self._waiting.values())).arrival_s if self._waiting else None

    def has_work(self) -> bool:
        """Tell whether a step would compute something."""
        return bool(self._running or self._waiting)

    # ---- what changes it ---------------------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence; raises RequestRefused when it can never fit, QueueFull when too many wait."""
        self._refuse_unfittable(sequence)
        self._refuse_when_full(sequence)
        self._waiting[sequence.request_id] = sequence
        self._tokens_queued += len(sequence.token_ids)

    def abort(self, request_id: str) -> None:
        """Forget a sequence and free its blocks; does nothing when it is not there."""
        sequence = self._waiting.pop(request_id, None)
        if sequence is not None:
            self._tokens_queued -= len(sequence.token_ids)
        elif self._running.pop(request_id, None) is not None:
            self.blocks.free(request_id)

    def schedule(self, now_s: float) -> ScheduledStep:
        """Choose the next step, allocate its blocks and count its tokens as computed."""
        step = ScheduledStep()
        budget = self.limits.max_num_batched_tokens
        cap = self.limits.prefill_cap(len(self._running) + len(self._waiting))
        for sequence in sorted(self._running.values(), key=lambda sequence: sequence.pending_tokens > 1):
            tokens = min(sequence.pending_tokens, cap, budget)
            if sequence.request_id not in self._running or tokens == 0:
                continue  # preempted for an older one, or nothing of the budget is left
            budget += self._make_room(sequence, sequence.computed_tokens + tokens, step)
            if sequence.request_id in self._running:
                step.entries.append(self._grant(sequence, tokens))
                budget -= tokens
        if not step.preempted:
            self._admit(step, budget, cap, now_s)
        for entry in step.entries:
            entry.sequence.computed_tokens += entry.tokens
        return step

    def finish_step(self, step: ScheduledStep, sampled: dict[str, int | None]) -> list[Sequence]:
        """Append the sampled token of each sequence and return the finished ones, their blocks freed.

        A sequence whose token is None cannot go on and finishes with `error`.
        """
        finished = []
        for entry in step.entries:
            sequence = entry.sequence
            if sequence.request_id not in sampled:
                continue
            token_id = sampled[sequence.request_id]
            if token_id is None:
                sequence.finish_reason = "error"
            else:
                sequence.append(token_id, self._eos_token_ids)
            if sequence.finish_reason is not None:
                del self._running[sequence.request_id]
                self.blocks.free(sequence.request_id)
                finished.append(sequence)
        return finished

    def check_integrity(self) -> None:
        """Check that blocks, tables and token counts agree; raises IntegrityError."""
        self.blocks.check_integrity()
        if self.blocks.holders() != frozenset(self._running):
            raise IntegrityError(f"{self.blocks.holders() ^ frozenset(self._running)} hold blocks or run, not both")
        for sequence in self._running.values():
            held = len(self.blocks.table(sequence.request_id))
            if held != self.blocks.blocks_for(sequence.computed_tokens):
                raise IntegrityError(f"{sequence.request_id} holds {held} blocks for {sequence.computed_tokens} tokens")
        for sequence in self._waiting.values():
            if sequence.computed_tokens:
                raise IntegrityError(f"{sequence.request_id} waits with {sequence.computed_tokens} computed tokens")
        if self._tokens_queued != sum(len(sequence.token_ids) for sequence in self._waiting.values()):
            raise IntegrityError(f"{self._tokens_queued} queued tokens are counted, the queue holds another number")
        arrivals = [sequence.arrival_s for sequence in (*self._running.values(), *self._waiting.values())]
        if arrivals != sorted(arrivals):
            raise IntegrityError("the order of arrival is lost")

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _refuse_unfittable(self, sequence: Sequence) -> None:
        if not sequence.token_ids:
            raise RequestRefused(
                "the prompt is empty, so there is nothing to continue", parameter="prompt", code="invalid_value"
            )
        most = sequence.most_tokens
        capacity = min(self.limits.max_model_len, self.blocks.blocks_total * self.blocks.block_size)
        if most > capacity:
            room = capacity - sequence.prompt_tokens
            advice = f"max_tokens of at most {room}" if room > 0 else f"a prompt of at most {capacity - 1} tokens"
            raise RequestRefused(
                f"prompt ({sequence.prompt_tokens} tokens) plus max_tokens ({sequence.sampling.max_tokens}) is {most} "
                f"tokens, this engine holds {capacity} per request: use {advice}",
                parameter="max_tokens" if room > 0 else "prompt",
                code="context_length_exceeded",
            )

    def _refuse_when_full(self, sequence: Sequence) -> None:
        most_requests, most_tokens = self.limits.max_num_queued_reqs, self.limits.max_num_queued_tokens
        if most_requests is not None and len(self._waiting) >= most_requests:
            raise QueueFull(
                f"{len(self._waiting)} requests wait, the limit is {most_requests}: try again later",
                reason="queue_requests",
                retry_after_s=1,
            )
        # An empty queue takes any prompt, else one longer than the limit could never run.
        if most_tokens is not None and self._waiting and self._tokens_queued + len(sequence.token_ids) > most_tokens:
            raise QueueFull(
                f"{self._tokens_queued} prompt tokens wait and this request adds {len(sequence.token_ids)}, "
                f"the limit is {most_tokens}: try again later",
                reason="queue_tokens",
                retry_after_s=1,
            )

    def _make_room(self, sequence: Sequence, tokens: int, step: ScheduledStep) -> int:
        """Preempt the youngest until `tokens` tokens fit; returns the budget that preempted entries give back."""
        refund = 0
        while not self.blocks.can_allocate(sequence.request_id, tokens):
            _, victim = self._running.popitem(last=True)
            refund += sum(entry.tokens for entry in step.entries if entry.sequence is victim)
            step.entries = [entry for entry in step.entries if entry.sequence is not victim]
            self._preempt(victim, step)
            if victim is sequence:
                break
        return refund

    def _preempt(self, victim: Sequence, step: ScheduledStep) -> None:
        self.blocks.free(victim.request_id)
        victim.computed_tokens = 0
        victim.preemptions += 1
        self.preemptions_total += 1
        self._waiting[victim.request_id] = victim
        self._waiting.move_to_end(victim.request_id, last=False)
        self._tokens_queued += len(victim.token_ids)
        step.preempted.append(victim)

    def _admit(self, step: ScheduledStep, budget: int, cap: int, now_s: float) -> None:
        unclaimed = self.blocks.blocks_free - sum(
            self.blocks.blocks_missing(sequence.request_id, len(sequence.token_ids))
            for sequence in self._running.values()
        )
        while self._waiting and budget > 0 and len(self._running) < self.limits.max_num_seqs:
            sequence = next(iter(self._waiting.values()))
            needed = self.blocks.blocks_for(len(sequence.token_ids))
            if needed > unclaimed:
                break
            unclaimed -= needed
            self._waiting.popitem(last=False)
            self._tokens_queued -= len(sequence.token_ids)
            self._running[sequence.request_id] = sequence
            if sequence.first_scheduled_s is None:
                sequence.first_scheduled_s = now_s
            tokens = min(sequence.pending_tokens, cap, budget)
            step.entries.append(self._grant(sequence, tokens))
            budget -= tokens

    def _grant(self, sequence: Sequence, tokens: int) -> ScheduledSequence:
        self.blocks.allocate(sequence.request_id, sequence.computed_tokens + tokens)
        return ScheduledSequence(sequence, sequence.computed_tokens, tokens)
