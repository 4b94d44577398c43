"""What a decision is bound to: the user's limits and objectives, the plan's speed, and the policy's own constants."""

import math
from dataclasses import dataclass

from pagefleet.autoscaler.schedule import ScheduledTime
from pagefleet.capacity.step_time import StepTime


@dataclass(frozen=True, kw_only=True)
class ServiceSpeed:
    """What the plan says of one replica."""

    step: StepTime | None
    """None where no data sheet tells: then it is learned from steps."""
    kv_tokens: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One service's autoscaling."""

    speed: ServiceSpeed | None
    """None where nobody knows what a replica holds: then only the targets and the guard decide."""
    min_replicas: int = 1
    max_replicas: int = 1
    ttft_slo_s: float | None = 2.0
    itl_slo_s: float | None = 0.1
    kv_occupancy_target: float = 0.80
    """Share of blocks that live sequences may hold: the user's explicit limit."""
    queue_depth_target: int = 4
    """Requests that may wait in one replica for longer than the time to the first token allows."""
    spare_replicas: int = 0
    """Replicas beyond what the load asks for."""
    schedule: tuple[ScheduledTime, ...] = ()
    """Times with more than `min_replicas`."""
    may_scale_up: bool = True
    may_scale_down: bool = True
    idle_to_zero_s: float | None = None
    """Time without any request after which the last replica goes; None keeps `min_replicas`."""
    lead_time_s: float = 140.0
    """Time from a replica's creation until it serves, before any was observed."""
    prompt_tokens: float = 512.0
    """Mean prompt until requests were seen."""
    output_tokens: float = 256.0
    """Mean answer until requests were seen."""

    load_share: float = 0.95
    """Share that a replica is given of its service rate, which itself leaves a reserve on every limit."""
    most_growth: float = 2.0
    """Growth within one lead time that is prepared for at most."""
    first_growth: float = 1.2
    """Growth that is prepared for until enough was seen."""
    growth_quantile: float = 0.85
    """Of the growth within a lead time, seen over the last hour."""
    growth_memory_s: float = 3600.0
    drain_backlog_s: float = 60.0
    """Time in which a queue that has formed should be gone."""
    down_window_s: float = 300.0
    """Scale down only to the most that was wanted in this time."""
    down_interval_s: float = 60.0
    down_share: float = 0.25
    """Share of the replicas that one scale-down takes at most; at least one."""
    consolidation_share: float = 0.95
    """Of `load_share`, that the replicas which stay may have after a scale-down."""
    stale_after_s: float = 12.5
    """Age from which a report is no longer fresh: more than two scrapes of 5 s."""
    least_fresh_share: float = 0.8
    """Share of ready replicas whose reports must be fresh for a scale-down."""
    late_share: float = 0.05
    """Share of late first tokens, or of slow answers, in 30 s above which the guard adds a replica."""
    least_samples: int = 20
    """First tokens or answers that the guard needs to judge."""
    least_corrector: float = 0.9
    """Of the factor on the time of a request, which falls slowly while all objectives are met."""
    most_corrector: float = 1.6

    @property
    def mistake(self) -> str | None:
        """Say what is impossible in the user's limits and what would work; None where all is possible."""
        if self.min_replicas > self.max_replicas:
            return (
                f"minReplicas is {self.min_replicas}, more than maxReplicas {self.max_replicas}; "
                f"write maxReplicas: {self.min_replicas} or more"
            )
        for name, value, least, most, example in (
            ("minReplicas", self.min_replicas, 0, math.inf, "1"),
            ("spareReplicas", self.spare_replicas, 0, math.inf, "1"),
            ("targets.kvOccupancy", self.kv_occupancy_target, 0.01, 1.0, "0.8"),
            ("targets.queueDepth", self.queue_depth_target, 1, math.inf, "4"),
            ("slo.ttft", 1.0 if self.ttft_slo_s is None else self.ttft_slo_s, 1e-6, math.inf, "2s"),
            ("slo.itl", 1.0 if self.itl_slo_s is None else self.itl_slo_s, 1e-6, math.inf, "100ms"),
            ("scaleToZero.idle", 1.0 if self.idle_to_zero_s is None else self.idle_to_zero_s, 1e-6, math.inf, "10m"),
        ):
            if not least <= value <= most:
                return f"{name} is {value:g}, which is impossible; write for example {name}: {example}"
        return None
