"""The policy that the controller runs."""

from collections.abc import Callable

from pagefleet.autoscaler.decide import decide
from pagefleet.autoscaler.decision import Decision
from pagefleet.autoscaler.decision_record import Record
from pagefleet.autoscaler.settings import Settings
from pagefleet.autoscaler.snapshot import Snapshot
from pagefleet.autoscaler.state import State


class LeadTimeCapacity:
    """Call `decide` every 5 s and keep its state."""

    interval_s = 5.0

    def __init__(self, settings: Settings, *, name: str = "", log: Callable[[Record], None] | None = None) -> None:
        self._settings = settings
        self._name, self._log = name, log
        self._state = State()
        self.decisions: list[Decision] = []

    def desired(self, snapshot: Snapshot) -> int:
        """Return the number of replicas that should exist."""
        before = self._state
        decision, self._state = decide(snapshot, before, self._settings)
        if self._log is not None:
            record = Record(
                namespace="simulated",
                service=self._name,
                uid=self._name,
                mode="Active",
                snapshot=snapshot,
                settings=self._settings,
                state=None if self.decisions else before,
                decision=decision,
            )
            self._log(record)
        self.decisions.append(decision)
        return decision.desired
