"""What came of a run: how many requests were served in time, and what it cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from pagefleet.autoscaler.simulate.replica import Request


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One policy on one workload."""

    requests: int
    in_time: int
    """Requests whose first token and whose mean time between tokens both met the objective."""
    unfinished: int
    replica_hours: float
    """Hours of all pods until the last arrival, those that load or drain included."""
    ttft_p50_s: float
    ttft_p99_s: float
    scale_events: int
    reversals_s: tuple[float, ...]
    """Times of scalings in another direction than the one before."""
    preemptions: int
    replicas: tuple[tuple[float, int], ...]
    """(time, replicas specified from then on)."""
    stopped_s: float | None = None
    """Where the run ended early: then it serves at most `attainment`, for at least `replica_hours`."""

    @property
    def attainment(self) -> float:
        """Return the share of requests served in time, 0 to 1."""
        return self.in_time / self.requests if self.requests else 1.0


def summarize(
    requests: Sequence[Request],
    lives: Sequence[tuple[float, float | None]],
    scales: Sequence[tuple[float, int, int]],
    *,
    duration_s: float,
    ttft_slo_s: float,
    itl_slo_s: float,
    preemptions: int,
    unseen: int = 0,
    stopped_s: float | None = None,
) -> Outcome:
    """Judge requests by both objectives, and lives of pods (created, gone) by the hours until the last arrival."""
    ttfts_s = sorted(
        float("inf") if request.first_token_s is None else request.first_token_s - request.arrival.time_s
        for request in requests
    )
    hours = sum(
        max(0.0, min(duration_s, duration_s if gone_s is None else gone_s) - min(duration_s, created_s))
        for created_s, gone_s in lives
    )
    directions = [after > before for _, before, after in scales]
    return Outcome(
        requests=len(requests) + unseen,
        in_time=unseen + sum(_is_in_time(request, ttft_slo_s, itl_slo_s) for request in requests),
        unfinished=sum(request.end_s is None for request in requests),
        replica_hours=hours / 3600,
        ttft_p50_s=_quantile(ttfts_s, 0.5),
        ttft_p99_s=_quantile(ttfts_s, 0.99),
        scale_events=len(scales),
        reversals_s=tuple(
            scale[0]
            for scale, before, now in zip(scales[1:], directions, directions[1:], strict=False)
            if before != now
        ),
        preemptions=preemptions,
        replicas=((0.0, scales[0][1]), *((time_s, after) for time_s, _, after in scales)) if scales else (),
        stopped_s=stopped_s,
    )


def _is_in_time(request: Request, ttft_slo_s: float, itl_slo_s: float) -> bool:
    if request.first_token_s is None or request.end_s is None:
        return False
    return request.first_token_s - request.arrival.time_s <= ttft_slo_s and request.mean_gap_s <= itl_slo_s


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
