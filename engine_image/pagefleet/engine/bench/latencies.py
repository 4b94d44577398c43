"""What clients saw: times to first token, between tokens and to the end, their percentiles, and goodput. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Hold one request's times, in seconds after the start of the run."""

    due_s: float
    """When it should have been sent: a late client counts against the server's latency, not for it."""
    token_times_s: Sequence[float] = ()
    """When each chunk of the stream that carried a token came."""
    end_s: float = 0.0
    output_tokens: int = 0
    """As the server counted them; a chunk may carry several."""
    cached_tokens: int = 0
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        """Return the time to the first token."""
        return self.token_times_s[0] - self.due_s

    @property
    def e2e_s(self) -> float:
        """Return the time to the end."""
        return self.end_s - self.due_s

    @property
    def gaps_s(self) -> list[float]:
        """Return the times between chunks: the stalls that a reader sees."""
        return [later - earlier for earlier, later in zip(self.token_times_s, self.token_times_s[1:], strict=False)]

    @property
    def tpot_s(self) -> float:
        """Return the time per token after the first; 0 when there is only one."""
        if self.output_tokens < 2:
            return 0.0
        return (self.token_times_s[-1] - self.token_times_s[0]) / (self.output_tokens - 1)


@dataclass(frozen=True)
class Slo:
    """Bound what a good request may take, in seconds."""

    ttft_s: float
    tpot_s: float

    def is_met(self, timeline: Timeline) -> bool:
        """Tell whether a request without error stayed within both bounds."""
        return timeline.error is None and timeline.ttft_s <= self.ttft_s and timeline.tpot_s <= self.tpot_s


def summarize(timelines: Sequence[Timeline], slo: Slo) -> dict[str, object]:
    """Return counts, rates and percentiles; errors are counted and are never good."""
    whole = [each for each in timelines if each.error is None]
    duration_s = max((each.end_s for each in timelines), default=0.0)
    good = sum(slo.is_met(each) for each in timelines)
    tokens = sum(each.output_tokens for each in whole)

    def rate(count: int) -> float:
        return round(count / duration_s, 4) if duration_s > 0 else 0.0

    return {
        "requests": len(timelines),
        "completed": len(whole),
        "errors": len(timelines) - len(whole),
        "duration_seconds": round(duration_s, 3),
        "output_tokens": tokens,
        "cached_tokens": sum(each.cached_tokens for each in whole),
        "requests_per_second": rate(len(whole)),
        "output_tokens_per_second": rate(tokens),
        "ttft_seconds": percentiles([each.ttft_s for each in whole]),
        "itl_seconds": percentiles([gap for each in whole for gap in each.gaps_s]),
        "tpot_seconds": percentiles([each.tpot_s for each in whole]),
        "e2e_seconds": percentiles([each.e2e_s for each in whole]),
        "slo": {"ttft_seconds": slo.ttft_s, "tpot_seconds": slo.tpot_s},
        "good_requests": good,
        "goodput_requests_per_second": rate(good),
    }


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """Return mean and percentiles; None for each when there are no values."""
    if not values:
        return {"mean": None, **{f"p{each}": None for each in PERCENTILES}}
    return {
        "mean": round(float(np.mean(values)), 5),
        **{f"p{each}": round(float(np.percentile(values, each)), 5) for each in PERCENTILES},
    }
