"""Whether a spec can be served, and what is expected of it: what judging comes to before a pod exists."""

from dataclasses import dataclass

from pagefleet.api.conditions import ConditionStatus
from pagefleet.capacity import CapacityPlan


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the spec can be served, and why not; Unknown while that is being found out."""

    reason: str
    message: str
    status: ConditionStatus = ConditionStatus.TRUE
    plan: CapacityPlan | None = None
    """How the model fits, where that is known."""
    is_kept: bool = False
    """What an earlier look found still stands, and so does the plan in the status."""
    holds: bool = False
    """No new pods for now, although nothing is wrong."""
    recheck_s: float | None = None
    """When time alone can bring another verdict."""

    @property
    def allows_pods(self) -> bool:
        """Whether a revision of this spec may get pods."""
        return self.status is not ConditionStatus.FALSE and not self.holds
