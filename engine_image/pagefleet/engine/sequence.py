"""One growing token list and what the scheduler knows of it."""

from dataclasses import dataclass, field

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
    preemptions: int = 0
    output_counts: dict[int, int] = field(default_factory=dict)
    """How often each token is in the output; kept only when a penalty needs it."""

    @classmethod
    def from_prompt(
        cls,
        request_id: str,
        prompt_token_ids: list[int],
        sampling: SamplingParameters,
        *,
        arrival_s: float,
        cache_salt: str | None = None,
    ) -> "Sequence":
        """Begin a sequence at its prompt."""
        return cls(request_id, len(prompt_token_ids), list(prompt_token_ids), sampling, arrival_s, cache_salt)

    @property
    def sequence_id(self) -> str:
        """Name the sequence."""
        return self.request_id

    @property
    def output_tokens(self) -> int:
        """Count the tokens generated so far."""
        return len(self.token_ids) - self.prompt_tokens

    @property
    def pending_tokens(self) -> int:
        """Count the known tokens that are not yet in the cache: 1 while decoding, more while prefilling."""
        return len(self.token_ids) - self.computed_tokens

    @property
    def most_tokens(self) -> int:
        """Return the length that the sequence can reach."""
        return self.prompt_tokens + self.sampling.max_tokens

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
