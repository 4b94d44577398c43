"""Decide who gets how many tokens of the next step: one rule for prefill, decode and resume.

Every step hands out at most `max_num_batched_tokens` tokens so that each sequence's computed tokens catch up with its
known ones. The order within a step:

1. Running sequences with one token to go, so that a decode advances in every step.
2. Running sequences with more to go, oldest first, each capped so that one long prompt cannot take the whole step.
3. Waiting sequences in order of rank, if nothing was preempted in this step and what the prefix cache does not hold of
   the whole known sequence fits into blocks that nobody else counts on. (Admitting on the first chunk alone makes two
   long prompts evict each other.) One whose next block a running sequence is about to compute is passed over.

When a running sequence finds no block, the last in rank is preempted: its blocks are freed, it goes back to its place
in the queue and is computed again later, save what is still cached. So the first in rank advances in every step.

Pure: no clock, no I/O. The algorithm is vLLM V1's, with the admission rule of its `reserve full input` mode.
"""

from typing import Literal, get_args

from pagefleet.engine.batching_policies import batching_policy
from pagefleet.engine.beam_moves import BeamMoves, end_beam
from pagefleet.engine.beams import BeamSearch
from pagefleet.engine.blocks import BlockManager, IntegrityError
from pagefleet.engine.capacity_policies import capacity_policy
from pagefleet.engine.prefill_rate import PrefillRate
from pagefleet.engine.prefix_cache import extend_hashes, root_hash
from pagefleet.engine.scheduled_step import ScheduledSequence, ScheduledStep
from pagefleet.engine.scheduler_limits import SchedulerLimits, refuse_unfittable, refuse_when_full
from pagefleet.engine.sequence import Sequence
from pagefleet.engine.waiting_queue import WaitingQueue, by_rank

WaitingReason = Literal["blocks", "sequences", "tokens", "shared_prefix", "batch", "beams"]
"""Why a sequence waits: KV blocks, places, tokens of the step, blocks that another computes, a batch, other beams."""

WAITING_REASONS: tuple[WaitingReason, ...] = get_args(WaitingReason)

MOST_SKIPPED = 64
"""Sequences that wait for blocks in flight and are passed over in one step: each costs a look at the cache."""


class Scheduler:
    """Hold the waiting and the running sequences."""

    def __init__(self, limits: SchedulerLimits, blocks: BlockManager, eos_token_ids: frozenset[int]) -> None:
        self.limits = limits
        self.blocks = blocks
        self.preemptions_total = 0
        self.prompt_tokens_total = 0
        """Prompt tokens of requests, counted at their first admission."""
        self.prefix_query_tokens_total = 0
        """Prompt tokens looked up in the prefix cache, at each request's first admission."""
        self.prefix_hit_tokens_total = 0
        self.waiting_by_reason: dict[WaitingReason, int] = dict.fromkeys(WAITING_REASONS, 0)
        """How many sequences the latest step left waiting, and for what."""
        self.prefill_rate = PrefillRate()
        """Whoever runs the steps tells it how long they take."""
        self._capacity = capacity_policy(limits.capacity_policy)
        self._batching = batching_policy(limits.batching, most=limits.max_num_seqs, timeout_s=limits.batching_timeout_s)
        self._eos_token_ids = eos_token_ids
        self._waiting = WaitingQueue()
        self._running: dict[str, Sequence] = {}
        self._beam_moves = BeamMoves(self._running, self._waiting, blocks, self._batching, limits.max_num_seqs)
        self._live: dict[str, dict[str, Sequence]] = {}  # by request, then by sequence
        self._arrivals = 0

    # ---- what is there -----------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Count the requests of which a sequence runs."""
        return len({sequence.request_id for sequence in self._running.values()})

    @property
    def queue_depth(self) -> int:
        """Count the requests of which no sequence runs, preempted ones included."""
        return len(self._live) - self.running

    @property
    def tokens_queued(self) -> int:
        """Count the known tokens of the sequences that wait."""
        return self._waiting.tokens

    @property
    def oldest_waiting_s(self) -> float | None:
        """Return when the oldest waiting sequence arrived; None when none waits."""
        return self._waiting.first.arrival_s if self._waiting.first is not None else None

    def sequences(self) -> list[Sequence]:
        """Return all live sequences."""
        return [sequence for sequences in self._live.values() for sequence in sequences.values()]

    def has_work(self) -> bool:
        """Tell whether a step would compute something."""
        return bool(self._running or self._waiting)

    # ---- what changes it ---------------------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence; raises RequestRefused when it can never fit, QueueFull when too many wait."""
        refuse_unfittable(sequence, self.limits, self.blocks, self._capacity)
        refuse_when_full(
            sequence,
            self.limits,
            requests=self.queue_depth,
            tokens=self.tokens_queued,
            tokens_per_s=self.prefill_rate.tokens_per_s,
        )
        self._arrivals += 1
        priority = sequence.priority if self.limits.scheduling_policy == "priority" else 0
        sequence.rank = (priority, self._arrivals, 0)
        if sequence.sampling.use_beam_search:
            sequence.beams = BeamSearch.begin(sequence.sampling, self._eos_token_ids)
        self._waiting.add(sequence)
        self._live[sequence.request_id] = {sequence.sequence_id: sequence}

    def abort(self, request_id: str) -> None:
        """Forget a request and free the blocks of all its sequences; does nothing when it is not there."""
        for sequence in list(self._live.get(request_id, {}).values()):
            self._forget(sequence)

    def abort_choice(self, request_id: str, index: int) -> None:
        """End one choice of a request; does nothing when it is not there."""
        for sequence in list(self._live.get(request_id, {}).values()):
            if sequence.beams is not None:
                sequence.beams.unwanted.add(index)  # the search needs all its beams
                if sequence.beams.unwanted.issuperset(range(sequence.beams.width)):
                    self.abort(request_id)
                return
            if index in sequence.choices_to_fork:
                sequence.choices_to_fork.remove(index)
            elif sequence.index == index:
                sequence.is_dropped = True
            if sequence.is_dropped and not sequence.choices_to_fork:
                self._forget(sequence)

    def schedule(self, now_s: float) -> ScheduledStep:
        """Choose the next step, allocate its blocks and count its tokens as computed."""
        step = ScheduledStep()
        self.blocks.now_s = now_s
        budget = self.limits.max_num_batched_tokens
        live = len(self._running) + len(self._waiting)
        for sequence in self._in_turn():
            tokens = min(sequence.pending_tokens, budget)
            if tokens > 1:
                tokens = min(tokens, self.limits.prefill_cap(live, sequence.capped_steps))
            if sequence.sequence_id not in self._running or tokens == 0:
                continue  # preempted for an older one, or nothing of the budget is left
            budget += self._make_room(sequence, sequence.computed_tokens + tokens, step)
            if sequence.sequence_id in self._running:
                self._grant(sequence, tokens, step)
                budget -= tokens
        reason: WaitingReason | None = "blocks"
        self.waiting_by_reason = dict.fromkeys(WAITING_REASONS, 0)
        if self._waiting and not step.preempted:
            reason = self._admit(step, budget, live, now_s)
            while not step.entries and any(sequence.is_parked for sequence in self._running.values()):
                # Beams that wait for one another hold what the others need: what they have computed is known.
                self._preempt(max(self._running.values(), key=by_rank), step)
                reason = self._admit(step, budget, live, now_s)
        if reason is not None:
            self.waiting_by_reason[reason] = len(self._waiting) - sum(self.waiting_by_reason.values())
        self._capacity.after_step(has_preempted=bool(step.preempted))
        step.leaves_prompts = bool(self._waiting)
        for entry in step.entries:
            entry.sequence.computed_tokens += entry.tokens
            step.count(entry)
            if not entry.samples:
                entry.sequence.capped_steps += 1
                step.leaves_prompts = True
            if entry.samples and entry.sequence.choices_to_fork:
                self._fork_choices(entry)
        step.blocks_to_zero, step.slots_to_zero = self.blocks.take_to_zero()
        return step

    def finish_step(self, step: ScheduledStep, sampled: dict[str, int | None]) -> list[Sequence]:
        """Append the sampled token of each sequence and return the finished ones, their blocks freed.

        A sequence whose token is None cannot go on and finishes with `error`; nobody finds its blocks.
        """
        finished = []
        for entry in step.entries:
            for sequence in entry.sequences:
                token_id = sampled.get(sequence.sequence_id)
                if token_id is not None or sequence.sequence_id not in sampled:
                    self.blocks.store_full(sequence.sequence_id, sequence.token_ids, sequence.block_hashes)
                else:
                    self._fail(entry, sequence)
                if sequence.is_dropped and not sequence.choices_to_fork:
                    sequence.finish_reason = "abort"
                elif token_id is not None and sequence.beams is None:
                    sequence.append(token_id, self._eos_token_ids)
            for sequence in entry.sequences:
                if sequence.finish_reason is not None:
                    self._forget(sequence)
                    finished.append(sequence)
        searches = {
            entry.sequence.request_id: entry.sequence.beams
            for entry in step.entries
            if entry.sequence.beams is not None
        }
        for request_id, beams in searches.items():
            finished += self._advance_beams(request_id, beams)
        return finished

    def check_integrity(self) -> None:
        """Check that blocks, tables and token counts agree; raises IntegrityError."""
        self.blocks.check_integrity()
        if self.blocks.holders() != frozenset(self._running):
            raise IntegrityError(f"{self.blocks.holders() ^ frozenset(self._running)} hold blocks or run, not both")
        for sequence in self._running.values():
            held = self.blocks.tokens(sequence.sequence_id)
            if held != sequence.computed_tokens:
                raise IntegrityError(
                    f"{sequence.sequence_id} holds blocks for {held} tokens, {sequence.computed_tokens} are computed"
                )
        for sequence in self._waiting:
            if sequence.computed_tokens:
                raise IntegrityError(f"{sequence.sequence_id} waits with {sequence.computed_tokens} computed tokens")
        if (reason := self._waiting.check_integrity()) is not None:
            raise IntegrityError(reason)
        live = {sequence.sequence_id for sequence in self.sequences()}
        if live != set(self._running) | {sequence.sequence_id for sequence in self._waiting}:
            raise IntegrityError("a sequence is live but neither runs nor waits, or the other way round")

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _forget(self, sequence: Sequence) -> None:
        """Take a sequence out of everything, wherever it is."""
        if self._waiting.remove(sequence.sequence_id) is None and sequence.sequence_id in self._running:
            del self._running[sequence.sequence_id]
            self.blocks.free(sequence.sequence_id)
        sequences = self._live[sequence.request_id]
        sequences.pop(sequence.sequence_id, None)
        if not sequences:
            del self._live[sequence.request_id]

    def _fork_choices(self, entry: ScheduledSequence) -> None:
        """Begin the other choices at the computed prompt: they sample from the same row as the first."""
        parent = entry.sequence
        for index in parent.choices_to_fork:
            child = parent.fork(index)
            self.blocks.fork(parent.sequence_id, child.sequence_id)
            self._running[child.sequence_id] = child
            self._live[child.request_id][child.sequence_id] = child
            entry.siblings.append(child)
        parent.choices_to_fork = []

    def _fail(self, entry: ScheduledSequence, sequence: Sequence) -> None:
        """End a sequence that cannot go on, and the choices that were to begin as its forks."""
        self.blocks.taint(sequence.sequence_id)
        sequence.finish_reason = "error"
        if sequence.beams is not None:
            sequence.beams.has_failed = True
        if sequence.choices_to_fork:
            self._fork_choices(entry)
            for child in entry.siblings:
                child.finish_reason = "error"

    def _advance_beams(self, request_id: str, beams: BeamSearch) -> list[Sequence]:
        """Let a search's beams go on once all know their next tokens; returns them when it is over."""
        sequences = {sequence.index: sequence for sequence in self._live.get(request_id, {}).values()}
        if not beams.has_failed and (not beams.is_ready or self._beam_moves.advance(sequences, beams)):
            return []
        for sequence in sequences.values():
            self._forget(sequence)
            end_beam(sequence, beams)
        return [sequence for _, sequence in sorted(sequences.items())]

    def _in_turn(self) -> list[Sequence]:
        """Return the running sequences: decodes first, then prefills by rank."""
        decodes, prefills = [], []
        for sequence in self._running.values():
            pending = sequence.pending_tokens
            if pending == 1:
                decodes.append(sequence)
            elif pending > 1:
                prefills.append(sequence)
        return decodes + sorted(prefills, key=by_rank)

    def _make_room(self, sequence: Sequence, tokens: int, step: ScheduledStep) -> int:
        """Preempt the last in rank until `tokens` tokens fit; returns the budget that preempted entries give back."""
        refund = 0
        if self.blocks.has_room_in_tail(sequence.sequence_id, tokens):
            return refund
        while not self.blocks.can_allocate(sequence.sequence_id, tokens):
            victim = max(self._running.values(), key=by_rank)
            refund += sum(entry.tokens for entry in step.entries if entry.sequence is victim)
            step.entries = [entry for entry in step.entries if entry.sequence is not victim]
            step.copies.pop(victim.sequence_id, None)
            self._preempt(victim, step)
            if victim is sequence:
                break
        return refund

    def _preempt(self, victim: Sequence, step: ScheduledStep) -> None:
        del self._running[victim.sequence_id]
        self.blocks.free(victim.sequence_id)
        victim.computed_tokens = 0
        victim.preemptions += 1
        self.preemptions_total += 1
        self._batching.admitted(-1)
        self._waiting.add(victim)
        step.preempted.append(victim)

    def _admit(self, step: ScheduledStep, budget: int, live: int, now_s: float) -> WaitingReason | None:
        """Admit who waits, in order, and return why the first that must wait on does."""
        self.waiting_by_reason = dict.fromkeys(WAITING_REASONS, 0)
        unclaimed = self.blocks.blocks_available - sum(map(self._claim, self._running.values()))
        seats = self.limits.max_num_seqs - sum(1 + len(sequence.choices_to_fork) for sequence in self._running.values())
        first = self._waiting.first
        places = self._batching.open_places(
            running=len(self._running),
            waiting=len(self._waiting),
            oldest_age_s=now_s - first.arrival_s if first else 0.0,
        )
        for sequence in list(self._waiting):
            if sequence.is_parked:
                self.waiting_by_reason["beams"] += 1
                continue
            if places <= 0:
                return "batch"
            if budget == 0 or self.waiting_by_reason["shared_prefix"] == MOST_SKIPPED:
                return "tokens"
            if seats < 1 + len(sequence.choices_to_fork):
                return "sequences"
            found = self._find_prefix(sequence)
            if self._is_next_block_in_flight(sequence, len(found)):
                self.waiting_by_reason["shared_prefix"] += 1
                continue
            needed = self._claim(sequence) - len(found) + self.blocks.blocks_taken(found)
            # With nothing else to wait for, what is known fits, and forks may preempt one another.
            if needed > unclaimed and (self._running or self._capacity.never_evicts):
                return "blocks"
            unclaimed -= needed
            seats -= 1 + len(sequence.choices_to_fork)
            places -= 1
            self._batching.admitted(1)
            self._start(sequence, found, now_s)
            tokens = min(sequence.pending_tokens, self.limits.prefill_cap(live, sequence.capped_steps), budget)
            self._grant(sequence, tokens, step)
            budget -= tokens
        return None

    def _claim(self, sequence: Sequence) -> int:
        """Return how many blocks a sequence counts on beside those that it holds, its forks included."""
        reserved = self._capacity.reserved_tokens(sequence)
        own = self.blocks.blocks_missing(sequence.sequence_id, reserved)
        if not sequence.choices_to_fork:
            return own
        # Each fork soon takes a block of its own, and keeps what it shares of the prompt.
        fork = max(1, self.blocks.blocks_for(reserved) - sequence.prompt_tokens // self.blocks.block_size)
        return own + len(sequence.choices_to_fork) * fork

    def _find_prefix(self, sequence: Sequence) -> list[int]:
        """Return the cached blocks that hold the sequence's beginning; nothing is taken yet."""
        if not self.blocks.has_prefix_cache:
            return []
        if not sequence.block_hashes:
            sequence.block_hashes.append(root_hash(sequence.cache_salt))
        extend_hashes(sequence.block_hashes, sequence.token_ids, self.blocks.block_size)
        return [] if sequence.skips_prefix_cache else self.blocks.find_prefix(sequence.token_ids, sequence.block_hashes)

    def _is_next_block_in_flight(self, sequence: Sequence, found: int) -> bool:
        """Tell whether a running sequence is about to compute the first block that was not found.

        Then waiting is cheaper than computing it twice. It ends: the other one is admitted, so it advances or is
        preempted, and when the block is there or the other one gone, the oldest that waits for it is next.
        """
        if not self.blocks.has_prefix_cache or sequence.skips_prefix_cache:
            return False
        if found >= (len(sequence.token_ids) - 1) // self.blocks.block_size:
            return False
        wanted = sequence.block_hashes[found + 1]
        return any(
            len(other.block_hashes) > found + 1
            and other.block_hashes[found + 1] == wanted
            and self.blocks.stored_blocks(other.sequence_id) <= found
            for other in self._running.values()
        )

    def _start(self, sequence: Sequence, found: list[int], now_s: float) -> None:
        self._waiting.remove(sequence.sequence_id)
        self._running[sequence.sequence_id] = sequence
        self.blocks.adopt(sequence.sequence_id, found)
        sequence.computed_tokens = len(found) * self.blocks.block_size
        if sequence.first_scheduled_s is not None:
            return
        sequence.first_scheduled_s = now_s
        sequence.cached_tokens = sequence.computed_tokens
        self.prompt_tokens_total += sequence.prompt_tokens
        if self.blocks.has_prefix_cache and not sequence.skips_prefix_cache:
            self.prefix_query_tokens_total += sequence.prompt_tokens
            self.prefix_hit_tokens_total += sequence.cached_tokens

    def _grant(self, sequence: Sequence, tokens: int, step: ScheduledStep) -> None:
        copy = self.blocks.allocate(sequence.sequence_id, sequence.computed_tokens + tokens)
        if copy is not None:
            step.copies[sequence.sequence_id] = copy
        step.entries.append(ScheduledSequence(sequence, sequence.computed_tokens, tokens))
