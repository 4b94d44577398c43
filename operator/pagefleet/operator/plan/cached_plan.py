"""Capacity plans by what they were asked for: every look at a service asks the same again."""

from functools import lru_cache

from pagefleet.capacity import CannotPlan, CapacityPlan, PlanRequest, make_plan

MOST_PLANS = 1024
"""Some kilobytes each; a service needs two or three."""


def plan_capacity(request: PlanRequest) -> CapacityPlan:
    """Return `make_plan` of a request, remembered; raises as that does."""
    outcome = _outcome(request)
    if isinstance(outcome, CannotPlan):
        raise outcome.with_traceback(None)  # else each raise would add to the one before
    return outcome


@lru_cache(MOST_PLANS)
def _outcome(request: PlanRequest) -> CapacityPlan | CannotPlan:
    try:
        return make_plan(request)
    except CannotPlan as refusal:
        return refusal
