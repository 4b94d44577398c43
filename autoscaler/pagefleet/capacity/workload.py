"""What will be asked of a replica: lengths, rate, shared prefixes and latency objectives."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pagefleet.capacity.errors import CannotPlan

TAIL = 0.999
"""Share of requests that the longest planned length covers."""


@dataclass(frozen=True)
class Lengths:
    """Describe how long prompts or outputs are, in tokens."""

    mean: float
    longest: int | None = None
    """Length that 99.9 % do not exceed; None where only a mean is known."""
    shares: tuple[tuple[int, float], ...] = ()
    """Tokens, each with its share of the requests; empty where only a mean is known."""

    def mean_of(self, of_tokens: Callable[[float], float]) -> float:
        """Return the mean of a function of the tokens over all requests, which all are as the mean if that is known."""
        if not self.shares:
            return of_tokens(self.mean)
        return sum(share * of_tokens(tokens) for tokens, share in self.shares)

    @classmethod
    def of_histogram(cls, requests_by_tokens: Mapping[int, float]) -> "Lengths":
        """Return the lengths of a histogram: a weight for each number of tokens; raises CannotPlan."""
        total = sum(requests_by_tokens.values())
        if not 0 < total < float("inf") or min(requests_by_tokens) < 1 or not min(requests_by_tokens.values()) >= 0:
            raise CannotPlan(
                f"the histogram {dict(requests_by_tokens)} counts no requests: write tokens with a number of requests, "
                "for example {512: 9, 2048: 1}"
            )
        seen = 0.0
        for tokens in sorted(requests_by_tokens):
            seen += requests_by_tokens[tokens]
            if seen >= TAIL * total:
                break
        shares = tuple((length, requests_by_tokens[length] / total) for length in sorted(requests_by_tokens))
        return cls(mean=sum(length * share for length, share in shares), longest=tokens, shares=shares)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Describe the load. What is None is no objective, and an unknown rate."""

    prompt_tokens: Lengths = Lengths(512)
    output_tokens: Lengths = Lengths(256)
    rate_per_s: float | None = None
    """Requests per second of the whole service."""
    shared_prefix: float = 0.0
    """Share of prompt tokens that the prefix cache will have."""
    ttft_s: float | None = None
    """Time to the first token, at most."""
    itl_s: float | None = None
    """Time between two tokens of one answer, at most."""

    def __post_init__(self) -> None:
        for what, value in (
            ("prompt tokens", self.prompt_tokens.mean),
            ("output tokens", self.output_tokens.mean),
            ("rate", self.rate_per_s),
            ("time to first token", self.ttft_s),
            ("inter-token latency", self.itl_s),
        ):
            if value is not None and not 0 < value < float("inf"):
                raise CannotPlan(f"{what} of {value:g} cannot be planned for: write a number above 0")
        if not 0 <= self.shared_prefix < 1:
            raise CannotPlan(f"a shared prefix of {self.shared_prefix:g} is no share: from 0 to below 1, such as 0.4")

    @property
    def computed_prompt_tokens(self) -> float:
        """Prompt tokens of a request that are not in the prefix cache."""
        return self.prompt_tokens.mean * (1 - self.shared_prefix)

    @property
    def mean_context(self) -> float:
        """Tokens in the cache of a sequence that decodes, averaged over all that do at one moment.

        A long output is there for long, so of a histogram of outputs the long ones weigh more.
        """
        outputs = self.output_tokens
        return self.prompt_tokens.mean + outputs.mean_of(lambda tokens: tokens**2) / outputs.mean / 2

    def prefill_steps(self, chunk: int) -> float:
        """Return in how many steps of at most `chunk` tokens a prompt is computed, on average."""
        return self.prompt_tokens.mean_of(lambda tokens: math.ceil(tokens * (1 - self.shared_prefix) / chunk))

    @property
    def longest_context(self) -> int | None:
        """Tokens that a request has at its end, by the tail of both histograms; None where one is unknown."""
        if self.prompt_tokens.longest is None or self.output_tokens.longest is None:
            return None
        return self.prompt_tokens.longest + self.output_tokens.longest
