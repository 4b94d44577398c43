"""The engine without processes: `step()` until nothing is left. The core process and `LLM` drive it."""

import time
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

from pagefleet.engine import machine, messages
from pagefleet.engine.blocks import BlockManager
from pagefleet.engine.errors import QueueFull, RequestRefused
from pagefleet.engine.kernels.interface import PagedAttention
from pagefleet.engine.logprobs import TokenLogprobs
from pagefleet.engine.plain_slots import PlainSlots
from pagefleet.engine.prefix_cache import CacheEvent
from pagefleet.engine.runner import Runner
from pagefleet.engine.scheduled_step import ScheduledStep
from pagefleet.engine.scheduler import Scheduler
from pagefleet.engine.scheduler_limits import SchedulerLimits
from pagefleet.engine.sequence import Sequence


class EngineCore:
    """Join scheduler, blocks and runner."""

    def __init__(
        self,
        *,
        info: messages.CoreReady,
        limits: SchedulerLimits,
        runner: Runner,
        attention: PagedAttention,
        keeps_cache_events: bool = False,
        plain_slots: PlainSlots | None = None,
    ) -> None:
        self.info = info
        self._blocks = BlockManager(
            blocks_total=info.blocks_total,
            block_size=info.block_size,
            has_prefix_cache=info.enable_prefix_caching,
            keeps_events=keeps_cache_events,
            plain_slots=plain_slots,
        )
        self.scheduler = Scheduler(limits, self._blocks, frozenset(info.eos_token_ids))
        self._runner = runner
        self._attention = attention
        self.is_forming = False
        """The latest step computed nothing: a batch waits for more requests, or for its time to run out."""
        self._steps_total = 0
        self._step_seconds_total = 0.0
        self._computed_tokens_total = 0
        self._kv_tokens_read_total = 0
        self._sequence_steps_total = 0
        self._step_time_s: float | None = None
        self._step_tokens = 0
        self._memory = machine.ResidentMemory()

    def add(self, request: messages.AddRequest) -> messages.Accepted | messages.Refused:
        """Queue one request, or say why not."""
        sequence = Sequence.from_prompt(
            request.request_id,
            request.prompt_token_ids,
            request.sampling,
            arrival_s=time.monotonic() if request.arrival_s is None else request.arrival_s,
            cache_salt=request.cache_salt,
            priority=request.priority,
        )
        try:
            self.scheduler.add(sequence)
        except RequestRefused as error:
            return messages.Refused(
                request_id=request.request_id,
                message=str(error),
                parameter=error.parameter,
                code=error.code,
            )
        except QueueFull as error:
            return messages.Refused(
                request_id=request.request_id,
                message=str(error),
                reason=error.reason,
                retry_after_s=error.retry_after_s,
            )
        return messages.Accepted(request_id=request.request_id)

    def add_all(self, requests: SequenceOf[messages.AddRequest]) -> None:
        """Queue all of these; when one is refused none stays queued. Raises RequestRefused."""
        for index, request in enumerate(requests):
            answer = self.add(request)
            if isinstance(answer, messages.Refused):
                self.abort([earlier.request_id for earlier in requests[:index]])
                raise RequestRefused(answer.message, parameter=answer.parameter, code=answer.code)

    def steps(self) -> Iterator[messages.StepOutputs]:
        """Compute steps until nothing is left, for a caller that adds no request meanwhile."""
        while self.has_work():
            step = self.step()
            if self.is_forming:
                time.sleep(0.001)  # nobody adds to this batch: it runs when its time-out is over
            else:
                yield step

    def abort(self, request_ids: list[str]) -> None:
        """Forget requests and free their blocks."""
        for request_id in request_ids:
            self.scheduler.abort(request_id)

    def abort_choice(self, request_id: str, index: int) -> None:
        """End one choice of a request."""
        self.scheduler.abort_choice(request_id, index)

    def has_work(self) -> bool:
        """Tell whether a step would compute something."""
        return self.scheduler.has_work()

    def step(self) -> messages.StepOutputs:
        """Compute one step and return what it produced."""
        started_s = time.monotonic()
        step = self.scheduler.schedule(started_s)
        self.is_forming = not step.entries
        if self.is_forming:
            return messages.StepOutputs(outputs=[], state=self.state())
        self._prepare_blocks(step)
        sampled = self._runner.execute(step, self._blocks.table)
        finished = self.scheduler.finish_step(step, sampled)
        now_s = time.monotonic()
        self._step_time_s = now_s - started_s
        self._step_tokens = step.tokens
        self._steps_total += 1
        self._step_seconds_total += self._step_time_s
        self._computed_tokens_total += step.prefill_tokens
        self._kv_tokens_read_total += step.kv_tokens_read
        self._sequence_steps_total += step.decodes
        self.scheduler.prefill_rate.observe(step.prefill_tokens, self._step_time_s, leaves_prompts=step.leaves_prompts)
        outputs = [
            _output(sequence, now_s)
            for entry in step.entries
            for sequence in entry.sequences
            if sequence.beams is None and (sequence.sequence_id in sampled or sequence.finish_reason == "error")
        ]
        outputs += [_output(sequence, now_s) for sequence in finished if sequence.beams is not None]
        residency = self._blocks.cache.take_residency()
        return messages.StepOutputs(
            outputs=outputs,
            state=self.state(),
            residency=messages.BlockResidency(
                lifetimes_s=residency.lifetimes_s,
                idle_times_s=residency.idle_times_s,
                reuse_gaps_s=residency.reuse_gaps_s,
            ),
        )

    def take_cache_events(self) -> list[CacheEvent]:
        """Return what happened to the prefix cache since the last call; nothing unless the core keeps events."""
        return self._blocks.cache.take_events()

    def cache_snapshot(self) -> list[CacheEvent]:
        """Return the events that describe the whole prefix cache."""
        return self._blocks.cache.snapshot()

    def reset_prefix_cache(self) -> None:
        """Forget what is cached; sequences that run keep what they share."""
        self._blocks.clear_cache()

    def state(self) -> messages.CoreState:
        """Describe the engine now."""
        now_s = time.monotonic()
        oldest_s = self.scheduler.oldest_waiting_s
        return messages.CoreState(
            blocks_total=self._blocks.blocks_total,
            blocks_active=self._blocks.blocks_active,
            blocks_cached=self._blocks.blocks_cached,
            blocks_free=self._blocks.blocks_free,
            tokens_active=self._blocks.tokens_active,
            running=self.scheduler.running,
            queue_depth=self.scheduler.queue_depth,
            tokens_queued=self.scheduler.tokens_queued,
            waiting_by_reason={str(reason): count for reason, count in self.scheduler.waiting_by_reason.items()},
            queue_age_s=None if oldest_s is None else now_s - oldest_s,
            preemptions_total=self.scheduler.preemptions_total,
            prompt_tokens_total=self.scheduler.prompt_tokens_total,
            prefix_query_tokens_total=self.scheduler.prefix_query_tokens_total,
            prefix_hit_tokens_total=self.scheduler.prefix_hit_tokens_total,
            steps_total=self._steps_total,
            step_seconds_total=self._step_seconds_total,
            computed_tokens_total=self._computed_tokens_total,
            kv_tokens_read_total=self._kv_tokens_read_total,
            sequence_steps_total=self._sequence_steps_total,
            step_time_s=self._step_time_s,
            step_tokens=self._step_tokens,
            memory_used_bytes=self._memory.bytes_at(now_s),
            monotonic_s=now_s,
        )

    def _prepare_blocks(self, step: ScheduledStep) -> None:
        """Zero blocks that held values that are not finite, whose masked lanes would spread; then copy shared tails."""
        if step.blocks_to_zero or step.slots_to_zero:
            self._attention.zero(step.blocks_to_zero, step.slots_to_zero)
        if step.copies:
            copies = step.copies.values()
            self._attention.copy_blocks([copy.source for copy in copies], [copy.target for copy in copies])


def _output(sequence: Sequence, now_s: float) -> messages.RequestOutput:
    is_failed = sequence.finish_reason == "error"
    new_tokens = sequence.output_tokens if sequence.beams is not None else 1  # of a beam all are known at its end
    is_first = sequence.output_tokens == new_tokens and sequence.first_scheduled_s is not None
    return messages.RequestOutput(
        request_id=sequence.request_id,
        index=sequence.index,
        new_token_ids=[] if is_failed else sequence.token_ids[-new_tokens:],
        finish_reason=sequence.finish_reason,
        stop_token_id=sequence.stop_token_id,
        queue_time_s=sequence.first_scheduled_s - sequence.arrival_s
        if is_first and sequence.first_scheduled_s is not None
        else None,
        prefill_time_s=now_s - sequence.first_scheduled_s
        if is_first and sequence.first_scheduled_s is not None
        else None,
        preemptions=sequence.preemptions,
        cached_tokens=sequence.cached_tokens if is_first else None,
        logprobs=None if is_failed or sequence.sampling.logprobs is None else _new_logprobs(sequence),
        prompt_logprobs=sequence.prompt_logprobs if is_first and sequence.sampling.needs_prompt_logits else None,
    )


def _new_logprobs(sequence: Sequence) -> list[TokenLogprobs]:
    if sequence.beams is not None:
        return sequence.beams.hypotheses[sequence.index].reported
    return [] if sequence.last_logprobs is None else [sequence.last_logprobs]
