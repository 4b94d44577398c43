"""One growing token list and what the scheduler knows of it."""

from dataclasses import dataclass, field

from pagefleet.engine.logprobs import TokenLogprobs
from pagefleet.engine.sampling_params import FinishReason, SamplingParameters


@dataclass(slots=True, eq=False)
class Sequence:
    """Hold the tokens of one request and how many of them are in the KV cache.

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
    computed_tokens: int = 0
    """Tokens whose keys and values are in the cache; preemption sets it to 0."""
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    first_scheduled_s: float | None = None
    preemptions: int = 0
    output_counts: dict[int, int] = field(default_factory=dict)
    """How often each token is in the output; kept only when a penalty needs it."""
    last_logprobs: TokenLogprobs | None = None
    """Score of the latest sampled token, for a request that asked."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Scores of the prompt tokens from the second on, as far as computed, for a request that asked."""

    @classmethod
    def from_prompt(
        cls, request_id: str, prompt_token_ids: list[int], sampling: SamplingParameters, *, arrival_s: float
    ) -> "Sequence":
        """Begin a sequence at its prompt."""
        return cls(request_id, len(prompt_token_ids), list(prompt_token_ids), sampling, arrival_s)

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
