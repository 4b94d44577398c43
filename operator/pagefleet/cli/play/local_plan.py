"""What the planner says of one service's replicas on this machine. Reads headers of files, and asks no hub."""

from dataclasses import dataclass

from pagefleet.api.v1alpha1 import InferenceService, PlanStatus, PlanStepTime
from pagefleet.capacity import CannotPlan, CapacityPlan, make_plan
from pagefleet.cli.errors import UserMistake
from pagefleet.cli.plan.inputs import choose_accelerator, subject_of
from pagefleet.cli.plan.model_sources import read_model_facts
from pagefleet.operator.plan.plan_request import as_started, make_request


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """Hold what is known beforehand; None where the planner cannot read the model or the accelerator."""

    status: PlanStatus | None = None
    least_bytes: int | None = None
    """One replica with the smallest cache that holds its longest sequence."""
    usable_bytes: int | None = None
    """What one replica alone may use."""


def plan_here(service: InferenceService) -> LocalPlan:
    """Plan a service as its engine starts here. What does not fit at all is for the engine to say."""
    try:
        subject = subject_of(service)
        facts = read_model_facts(subject.model, revision=subject.revision, asks_hub=False)
        request = make_request(service.spec, facts, choose_accelerator(subject))
        plan = make_plan(as_started(request, service.spec))
    except (UserMistake, CannotPlan):
        return LocalPlan()
    longest_blocks = -(-plan.max_model_len // plan.knobs.block_size)
    return LocalPlan(
        status=_status(plan),
        least_bytes=plan.footprint.fixed_bytes + longest_blocks * plan.footprint.block_bytes,
        usable_bytes=plan.footprint.usable_bytes,
    )


def _status(plan: CapacityPlan) -> PlanStatus:
    """Return what decisions need; how large a cache is, each engine reports, since they share the machine."""
    step = plan.step
    return PlanStatus(
        block_size=plan.knobs.block_size,
        max_num_seqs=plan.knobs.max_num_seqs,
        max_num_batched_tokens=plan.knobs.max_num_batched_tokens,
        step_time=None
        if step is None
        else PlanStepTime(
            base_seconds=step.base_s,
            prefill_token_seconds=step.prefill_token_s,
            kv_token_seconds=step.kv_token_s,
            sequence_seconds=step.sequence_s,
            source=step.source,
        ),
    )
