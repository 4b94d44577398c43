"""Builders for sequences and schedulers."""

from itertools import count
from typing import Any

from pagefleet.capacity.kv_formats import plain_blocks
from pagefleet.engine.blocks import BlockManager
from pagefleet.engine.plain_slots import PlainSlots
from pagefleet.engine.sampling_params import SamplingParameters
from pagefleet.engine.scheduled_step import ScheduledStep
from pagefleet.engine.scheduler import Scheduler
from pagefleet.engine.scheduler_limits import SchedulerLimits
from pagefleet.engine.sequence import Sequence

END_TOKEN = 9
PLAIN_TOKEN = 5
_arrivals = count()


def make_sequence(
    name: str,
    prompt: int | list[int] = 4,
    max_tokens: int = 4,
    *,
    cache_salt: str | None = None,
    priority: int = 0,
    **sampling: Any,
) -> Sequence:
    """Make a sequence with this prompt, or one of so many equal tokens; each arrives after the one before."""
    return Sequence.from_prompt(
        name,
        [PLAIN_TOKEN] * prompt if isinstance(prompt, int) else prompt,
        SamplingParameters(max_tokens=max_tokens, **sampling),
        arrival_s=float(next(_arrivals)),
        cache_salt=cache_salt,
        priority=priority,
    )


def make_scheduler(
    *,
    blocks: int = 100,
    block_size: int = 4,
    has_prefix_cache: bool = False,
    sink_blocks: int | None = None,
    **options: Any,
) -> Scheduler:
    """Make a scheduler with roomy limits and no prefix cache, save what is given; `sink_blocks` makes it pack."""
    defaults: dict[str, Any] = {"max_num_seqs": 16, "max_num_batched_tokens": 64, "max_model_len": 400}
    limits = SchedulerLimits(**{**defaults, **options})
    plain_slots = None
    if sink_blocks is not None:
        slots = plain_blocks(
            sinks=sink_blocks,
            block_size=block_size,
            sequences=limits.max_num_seqs,
            step_tokens=limits.max_num_batched_tokens,
        )
        plain_slots = PlainSlots(slots_total=min(slots, blocks), blocks_total=blocks, sink_blocks=sink_blocks)
    manager = BlockManager(
        blocks_total=blocks, block_size=block_size, has_prefix_cache=has_prefix_cache, plain_slots=plain_slots
    )
    return Scheduler(limits, manager, frozenset({END_TOKEN}))


def granted(step: ScheduledStep) -> dict[str, int]:
    """Return the tokens that each sequence got."""
    return {entry.sequence.sequence_id: entry.tokens for entry in step.entries}


def run_step(scheduler: Scheduler, token: int = PLAIN_TOKEN) -> dict[str, int]:
    """Schedule a step, sample the token for all that want one, and return what each sequence got."""
    step = scheduler.schedule(0.0)
    sampling = [sequence for entry in step.entries if entry.samples for sequence in entry.sequences]
    scheduler.finish_step(step, {sequence.sequence_id: token for sequence in sampling})
    scheduler.check_integrity()
    return granted(step)
