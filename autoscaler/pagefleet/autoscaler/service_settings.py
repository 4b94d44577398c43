"""Turn an InferenceService and what its engines report into the settings of its decisions. Pure."""

from collections.abc import Iterable
from dataclasses import replace

from pagefleet.api.capacity import CapacityReport
from pagefleet.api.v1alpha1 import InferenceService, PlanStatus
from pagefleet.api.v1alpha1.autoscaling import AutoscalingSpec
from pagefleet.autoscaler.observe import MOST_LEAD_TIME_S
from pagefleet.autoscaler.schedule import scheduled_time
from pagefleet.autoscaler.settings import ServiceSpeed, Settings
from pagefleet.capacity.step_time import StepTime

MOST_DOWN_INTERVAL_S = 60.0
DOWN_STEPS = 5
"""Steps down that fit into one window."""
DEFAULT_LEAD_TIME_S = 140.0
"""Until a start was seen: what a large model takes to load."""


def settings_of(service: InferenceService, reports: Iterable[CapacityReport] = ()) -> Settings | None:
    """Return the settings of a service, or None where it has no `spec.autoscaling`.

    `reports` are the latest of its replicas: the blocks that an engine has go before the ones that were planned.
    """
    spec = service.spec.autoscaling
    if spec is None:
        return None
    known = [report for report in reports if report.blocks_total and report.block_size]
    return under(
        spec, Settings(speed=_speed(service.status.plan, known), lead_time_s=_lead_time_s(service.status.plan, known))
    )


def under(spec: AutoscalingSpec, settings: Settings) -> Settings:
    """Return settings with the user's limits and objectives; speed, lead time and the policy's constants stay."""
    return replace(
        settings,
        min_replicas=spec.min_replicas,
        max_replicas=spec.max_replicas,
        ttft_slo_s=spec.slo.ttft_s,
        itl_slo_s=spec.slo.itl_s,
        kv_occupancy_target=spec.targets.kv_occupancy,
        queue_depth_target=spec.targets.queue_depth,
        down_window_s=spec.scale_down_window_s,
        down_interval_s=min(MOST_DOWN_INTERVAL_S, spec.scale_down_window_s / DOWN_STEPS),
        spare_replicas=spec.spare_replicas,
        schedule=tuple(scheduled_time(entry) for entry in spec.schedule),
        may_scale_up=not spec.pause_scale_up,
        may_scale_down=not spec.pause_scale_down,
        idle_to_zero_s=None if spec.scale_to_zero is None else spec.scale_to_zero.idle_s,
    )


def _speed(plan: PlanStatus | None, reports: list[CapacityReport]) -> ServiceSpeed | None:
    """Return what a replica holds and, where the plan knows it, how fast it is; None where nobody knows the cache."""
    smallest = min(reports, key=lambda report: report.blocks_total or 0, default=None)
    kv_tokens = block_size = most_sequences = most_tokens = None
    if plan is not None:
        kv_tokens = plan.predicted.kv_tokens if plan.predicted is not None else None
        block_size, most_sequences, most_tokens = plan.block_size, plan.max_num_seqs, plan.max_num_batched_tokens
    if smallest is not None:
        kv_tokens = (smallest.blocks_total or 0) * (smallest.block_size or 0)
        block_size = smallest.block_size
        most_sequences = smallest.max_num_seqs or most_sequences
        most_tokens = smallest.max_num_batched_tokens or most_tokens
    if not kv_tokens or not block_size or not most_sequences or not most_tokens:
        return None
    return ServiceSpeed(
        step=_step(plan),
        kv_tokens=kv_tokens,
        block_size=block_size,
        max_num_seqs=most_sequences,
        max_num_batched_tokens=most_tokens,
    )


def _step(plan: PlanStatus | None) -> StepTime | None:
    if plan is None or plan.step_time is None:
        return None
    terms = plan.step_time
    return StepTime(
        base_s=terms.base_seconds,
        prefill_token_s=terms.prefill_token_seconds,
        kv_token_s=terms.kv_token_seconds,
        sequence_s=terms.sequence_seconds,
        source=terms.source,
    )


def _lead_time_s(plan: PlanStatus | None, reports: list[CapacityReport]) -> float:
    """Return the start-up time that an engine of this service took; what a pod takes before it is learned."""
    measured = [sum(report.startup_stage_seconds.values()) for report in reports]
    if measured and 0 < max(measured) <= MOST_LEAD_TIME_S:
        return max(measured)
    if plan is not None and plan.measured is not None and plan.measured.startup_seconds:
        return plan.measured.startup_seconds
    return DEFAULT_LEAD_TIME_S
