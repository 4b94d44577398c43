"""The engine without processes: `step()` until nothing is left. The core process and `LLM` drive it."""

import time

from pagefleet.engine import machine, messages
from pagefleet.engine.blocks import BlockManager
from pagefleet.engine.errors import QueueFull, RequestRefused
from pagefleet.engine.kernels.interface import PagedAttention
from pagefleet.engine.runner import Runner
from pagefleet.engine.scheduler import ScheduledStep, Scheduler, SchedulerLimits
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
    ) -> None:
        self.info = info
        self._blocks = BlockManager(blocks_total=info.blocks_total, block_size=info.block_size)
        self.scheduler = Scheduler(limits, self._blocks, frozenset(info.eos_token_ids))
        self._runner = runner
        self._attention = attention
        self._steps_total = 0
        self._step_time_s: float | None = None
        self._step_tokens = 0

    def add(self, request: messages.AddRequest) -> messages.Accepted | messages.Refused:
        """Queue one request, or say why not."""
        sequence = Sequence.from_prompt(
            request.request_id, request.prompt_token_ids, request.sampling, arrival_s=time.monotonic()
        )
        try:
            self.scheduler.add(sequence)
        except RequestRefused as error:
            return messages.Refused(request_id=request.request_id, message=str(error), reason="too_long")
        except QueueFull as error:
            return messages.Refused(
                request_id=request.request_id,
                message=str(error),
                reason=error.reason,
                retry_after_s=error.retry_after_s,
            )
        return messages.Accepted(request_id=request.request_id)

    def abort(self, request_ids: list[str]) -> None:
        """Forget requests and free their blocks."""
        for request_id in request_ids:
            self.scheduler.abort(request_id)

    def has_work(self) -> bool:
        """Tell whether a step would compute something."""
        return self.scheduler.has_work()

    def step(self) -> messages.StepOutputs:
        """Compute one step and return what it produced."""
        started_s = time.monotonic()
        step = self.scheduler.schedule(started_s)
        sampled = self._runner.execute(step, self._blocks.table)
        self._clear_failed(step, sampled)
        self.scheduler.finish_step(step, sampled)
        now_s = time.monotonic()
        self._steps_total += 1
        self._step_time_s = now_s - started_s
        self._step_tokens = step.tokens
        outputs = [_output(entry.sequence, now_s) for entry in step.entries if entry.sequence.request_id in sampled]
        return messages.StepOutputs(outputs=outputs, state=self.state())

    def state(self) -> messages.CoreState:
        """Describe the engine now."""
        now_s = time.monotonic()
        oldest_s = self.scheduler.oldest_waiting_s
        return messages.CoreState(
            blocks_total=self._blocks.blocks_total,
            blocks_active=self._blocks.blocks_active,
            blocks_cached=0,
            blocks_free=self._blocks.blocks_free,
            tokens_active=self.scheduler.tokens_active,
            running=self.scheduler.running,
            queue_depth=self.scheduler.queue_depth,
            tokens_queued=self.scheduler.tokens_queued,
            queue_age_s=None if oldest_s is None else now_s - oldest_s,
            preemptions_total=self.scheduler.preemptions_total,
            prefix_query_tokens_total=0,
            prefix_hit_tokens_total=0,
            steps_total=self._steps_total,
            step_time_s=self._step_time_s,
            step_tokens=self._step_tokens,
            memory_used_bytes=machine.memory_used_bytes(),
            monotonic_s=now_s,
        )

    def _clear_failed(self, step: ScheduledStep, sampled: dict[str, int | None]) -> None:
        """Zero the blocks of sequences that computed something not finite: masked lanes would carry it to others."""
        for entry in step.entries:
            if sampled.get(entry.sequence.request_id, 0) is None:
                self._attention.zero(self._blocks.table(entry.sequence.request_id))


def _output(sequence: Sequence, now_s: float) -> messages.RequestOutput:
    is_failed = sequence.finish_reason == "error"
    is_first = sequence.output_tokens == 1 and sequence.first_scheduled_s is not None
    return messages.RequestOutput(
        request_id=sequence.request_id,
        new_token_ids=[] if is_failed else sequence.token_ids[-1:],
        finish_reason=sequence.finish_reason,
        stop_token_id=sequence.stop_token_id,
        queue_time_s=sequence.first_scheduled_s - sequence.arrival_s
        if is_first and sequence.first_scheduled_s is not None
        else None,
        prefill_time_s=now_s - sequence.first_scheduled_s
        if is_first and sequence.first_scheduled_s is not None
        else None,
        preemptions=sequence.preemptions,
        logprobs=None if is_failed or sequence.last_logprobs is None else [sequence.last_logprobs],
        prompt_logprobs=sequence.prompt_logprobs if is_first and sequence.sampling.needs_prompt_logits else None,
    )
