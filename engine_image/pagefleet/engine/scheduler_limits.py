"""What bounds the scheduler, and the refusals with which it says so. Pure."""

from dataclasses import dataclass
from math import ceil
from typing import Literal

from pagefleet.engine.batching_policies import BatchingPolicyName
from pagefleet.engine.blocks import BlockManager
from pagefleet.engine.capacity_policies import CapacityPolicy, CapacityPolicyName
from pagefleet.engine.errors import QueueFull, RequestRefused
from pagefleet.engine.sequence import Sequence

SchedulingPolicy = Literal["fcfs", "priority"]

LONG_PREFILL_SHARE = 4
"""With this many live sequences or more, one prompt gets at most a quarter of the budget."""

AGEING_STEPS = 16
"""Steps after which a prompt that is still being computed may get twice as much of each."""

LONGEST_RETRY_S = 60
"""A client that is told to come back comes back within a minute: the rate may have risen by then."""


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
    scheduling_policy: SchedulingPolicy = "fcfs"
    """Rank by arrival, or by the request's priority and then by arrival."""
    capacity_policy: CapacityPolicyName = "on-demand"
    batching: BatchingPolicyName = "continuous"
    batching_timeout_s: float = 0.1
    """How long a dynamic batch that is not full waits for more."""
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    queue_ttft_target_s: float | None = None
    """Take no request whose first token would come later, by the prompt tokens before it and the measured rate."""

    def prefill_cap(self, live_sequences: int, capped_steps: int = 0) -> int:
        """Return how many tokens one prompt may get in a step in which so many sequences want some.

        It doubles with every 16 steps that the prompt has been at it, up to half of the budget, so that long prompts
        come to an end under a stream of short ones and never push those out.
        """
        cap = self._first_cap(live_sequences)
        return max(cap, min(cap << min(capped_steps // AGEING_STEPS, 30), self.max_num_batched_tokens // 2))

    def _first_cap(self, live_sequences: int) -> int:
        if self.long_prefill_token_threshold is None:
            return max(1, self.max_num_batched_tokens // max(1, min(live_sequences, LONG_PREFILL_SHARE)))
        return self.long_prefill_token_threshold or self.max_num_batched_tokens


def refuse_unfittable(
    sequence: Sequence, limits: SchedulerLimits, blocks: BlockManager, policy: CapacityPolicy
) -> None:
    """Raise RequestRefused when the request could never run, with what would work."""
    if not sequence.token_ids:
        raise RequestRefused(
            "the prompt is empty, so there is nothing to continue", parameter="prompt", code="invalid_value"
        )
    choices, name = sequence.sampling.choices, "beam_width" if sequence.sampling.use_beam_search else "n"
    if choices > limits.max_num_seqs:
        raise RequestRefused(
            f"{name} is {choices}, this engine runs {limits.max_num_seqs} sequences at once: "
            f"use {name} of at most {limits.max_num_seqs}",
            parameter=name,
            code="invalid_value",
        )
    most = sequence.most_tokens
    capacity = min(limits.max_model_len, blocks.blocks_total * blocks.block_size)
    if policy.never_evicts:
        own = blocks.blocks_for(most) - sequence.prompt_tokens // blocks.block_size
        needed = blocks.blocks_for(most) + len(sequence.choices_to_fork) * max(1, own)
        if most <= capacity and needed > blocks.blocks_total:
            raise RequestRefused(
                f"{name} {choices} with max_tokens {sequence.sampling.max_tokens} needs {needed} KV blocks, "
                f"this engine has {blocks.blocks_total} and reserves all: use a smaller {name} or max_tokens",
                parameter=name,
                code="context_length_exceeded",
            )
    if most > capacity:
        room = capacity - sequence.prompt_tokens
        advice = f"max_tokens of at most {room}" if room > 0 else f"a prompt of at most {capacity - 1} tokens"
        raise RequestRefused(
            f"prompt ({sequence.prompt_tokens} tokens) plus max_tokens ({sequence.sampling.max_tokens}) is {most} "
            f"tokens, this engine holds {capacity} per request: use {advice}",
            parameter="max_tokens" if room > 0 else "prompt",
            code="context_length_exceeded",
        )


def queued_tokens_bound(target_s: float | None, tokens_per_s: float | None) -> int | None:
    """Return how many prompt tokens are computed within the target; None without a target or a measurement."""
    return None if target_s is None or tokens_per_s is None else int(target_s * tokens_per_s)


def retry_after_s(excess_tokens: int, tokens_per_s: float | None) -> int:
    """Return the whole seconds, 1 to LONGEST_RETRY_S, after which so many tokens fewer will wait."""
    if tokens_per_s is None:
        return 1
    return min(LONGEST_RETRY_S, max(1, ceil(excess_tokens / tokens_per_s)))


def refuse_when_full(
    sequence: Sequence, limits: SchedulerLimits, *, requests: int, tokens: int, tokens_per_s: float | None = None
) -> None:
    """Raise QueueFull when `requests` and `tokens` that wait leave no room for another request.

    `tokens_per_s` is the rate at which prompts are computed; None while it is unknown.
    """
    most_requests, most_tokens = limits.max_num_queued_reqs, limits.max_num_queued_tokens
    if most_requests is not None and requests >= most_requests:
        raise QueueFull(
            f"{requests} requests wait, the limit is {most_requests}: try again later",
            reason="queue_requests",
            retry_after_s=1,
        )
    if requests == 0:
        return  # an empty queue takes any prompt, else one longer than the limit could never run
    wanted = tokens + len(sequence.token_ids)
    if most_tokens is not None and wanted > most_tokens:
        raise QueueFull(
            f"{tokens} prompt tokens wait and this request adds {len(sequence.token_ids)}, "
            f"the limit is {most_tokens}: try again later",
            reason="queue_tokens",
            retry_after_s=retry_after_s(wanted - most_tokens, tokens_per_s),
        )
    bound = queued_tokens_bound(limits.queue_ttft_target_s, tokens_per_s)
    if bound is not None and wanted > bound:
        raise QueueFull(
            f"{tokens} prompt tokens wait and this request adds {len(sequence.token_ids)}; at {tokens_per_s:.0f} "
            f"tokens per second its first token would come later than in "
            f"{limits.queue_ttft_target_s:g} s: try again later",
            reason="queue_ttft",
            retry_after_s=retry_after_s(wanted - bound, tokens_per_s),
        )
