"""One growing token list and what the scheduler knows of it."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from pagefleet.engine.beams import BeamSearch
from pagefleet.engine.logprobs import TokenLogprobs
from pagefleet.engine.sampling_params import FinishReason, SamplingParameters


@dataclass(slots=True, eq=False)
class Sequence:
    """Hold one sequence's tokens and how many of them are in the KV cache.

    There is no prefill or decode phase: `computed_tokens` chases `len(token_ids)`, and when it has caught up the step
    samples one more token.
    """

    request_id: str
    prompt_tokens: int
    """The first tokens of `token_ids`, which the user sent."""
    token_ids: list[int]
    """Prompt and output."""
    sampling: SamplingParameters
    arrival_s: float
    """When the core got the request (monotonic)."""
    priority: int = 0
    """Smaller is earlier, where the scheduler ranks by it."""
    index: int = 0
    """Which of the request's choices this is."""
    choices_to_fork: list[int] = field(default_factory=list)
    """Choices that begin as forks of this sequence once its prompt is computed."""
    is_dropped: bool = False
    """Nobody wants this choice any more, but others are still to be forked from it."""
    beams: BeamSearch | None = None
    """What it shares with the other beams of its request; None outside of a beam search."""
    cache_salt: str | None = None
    """Cached blocks are shared only between sequences with the same salt."""
    skips_prefix_cache: bool = False
    """Compute every prompt token: what is wanted of them is not in the cache, such as their log-probabilities."""
    block_hashes: list[bytes] = field(default_factory=list)
    """The prefix cache's chain over the full blocks, its root first; empty until it is needed."""
    cached_tokens: int | None = None
    """Prompt tokens that the first admission found in the prefix cache; None before."""
    computed_tokens: int = 0
    """Tokens whose keys and values are in the cache; preemption sets it to 0."""
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    rank: tuple[int, int, int] = (0, 0, 0)
    """Whoever has the smaller one is admitted earlier and preempted later; the scheduler sets it, once."""
    first_scheduled_s: float | None = None
    capped_steps: int = 0
    """Steps that computed a part of what was known and left a rest."""
    preemptions: int = 0
    output_counts: dict[int, int] = field(default_factory=dict)
    """How often each token is in the output; kept only when a penalty needs it."""
    last_logprobs: TokenLogprobs | None = None
    """Score of the latest sampled token, for a request that asked."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Scores of the prompt tokens from the second on, as far as computed, for a request that asked."""
    sequence_id: str = field(init=False)
    """Names the sequence: as its request, or with the number of its choice."""

    def __post_init__(self) -> None:
        self.sequence_id = f"{self.request_id}#{self.index}" if self.index else self.request_id

    @classmethod
    def from_prompt(
        cls,
        request_id: str,
        prompt_token_ids: list[int],
        sampling: SamplingParameters,
        *,
        arrival_s: float,
        cache_salt: str | None = None,
        priority: int = 0,
    ) -> "Sequence":
        """Begin a sequence at its prompt."""
        return cls(
            request_id,
            len(prompt_token_ids),
            list(prompt_token_ids),
            sampling,
            arrival_s,
            priority=priority,
            choices_to_fork=list(range(1, sampling.choices)),
            cache_salt=cache_salt,
            skips_prefix_cache=sampling.needs_prompt_logits,
        )

    @property
    def output_tokens(self) -> int:
        """Count the tokens generated so far."""
        return len(self.token_ids) - self.prompt_tokens

    @property
    def pending_tokens(self) -> int:
        """Count the known tokens that are not yet in the cache: 1 while decoding, more while prefilling."""
        return len(self.token_ids) - self.computed_tokens

    @property
    def is_parked(self) -> bool:
        """Tell whether it is a beam that knows its next tokens and waits for the others to know theirs."""
        return self.beams is not None and self.index in self.beams.candidates

    @property
    def most_tokens(self) -> int:
        """Return the length that the sequence can reach."""
        return self.prompt_tokens + self.sampling.max_tokens

    def fork(self, index: int) -> "Sequence":
        """Begin another choice of the request at the same tokens; it draws from the request's seed plus its index."""
        return Sequence(
            request_id=self.request_id,
            prompt_tokens=self.prompt_tokens,
            token_ids=list(self.token_ids),
            sampling=replace(self.sampling, seed=self.sampling.seed + index - self.index),
            arrival_s=self.arrival_s,
            index=index,
            beams=self.beams,
            cache_salt=self.cache_salt,
            skips_prefix_cache=self.skips_prefix_cache,
            block_hashes=list(self.block_hashes),
            cached_tokens=self.cached_tokens,
            computed_tokens=self.computed_tokens,
            rank=(*self.rank[:2], index),
            first_scheduled_s=self.first_scheduled_s,
            preemptions=self.preemptions,
            output_counts=dict(self.output_counts),
            prompt_logprobs=self.prompt_logprobs,
        )

    def append(self, token_id: int, eos_token_ids: frozenset[int]) -> None:
        """Add a sampled token and finish when it ends the sequence."""
        self.token_ids.append(token_id)
        if self.sampling.needs_token_counts:
            self.output_counts[token_id] = self.output_counts.get(token_id, 0) + 1
        if self.output_tokens >= self.sampling.min_tokens:
            if token_id in self.sampling.stop_token_ids:
                self.finish_reason, self.stop_token_id = "stop", token_id
            elif token_id in eos_token_ids and not self.sampling.ignore_eos:
                self.finish_reason = "stop"
        if self.finish_reason is None and self.output_tokens >= self.sampling.max_tokens:
            self.finish_reason = "length"
