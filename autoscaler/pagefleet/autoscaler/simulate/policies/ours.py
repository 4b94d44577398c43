"""The policy that the controller runs."""

from pagefleet.autoscaler.decide import decide
from pagefleet.autoscaler.decision import Decision
from pagefleet.autoscaler.settings import Settings
from pagefleet.autoscaler.snapshot import Snapshot
from pagefleet.autoscaler.state import State


class LeadTimeCapacity:
    """Call `decide` every 5 s and keep its state."""

    interval_s = 5.0

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._state = State()
        self.decisions: list[Decision] = []

    def desired(self, snapshot: Snapshot) -> int:
        """Return the number of replicas that should exist."""
        decision, self._state = decide(snapshot, self._state, self._settings)
        self.decisions.append(decision)
        return decision.desired
