"""How a new revision takes over."""

from enum import StrEnum

from pagefleet.api.base import ApiModel
from pagefleet.api.quantity import Duration, duration_s


class RolloutStrategy(StrEnum):
    """Surge starts the new replica first; Replace drains the old one first; Auto surges if an accelerator is free."""

    AUTO = "Auto"
    SURGE = "Surge"
    REPLACE = "Replace"


class RolloutSpec(ApiModel):
    """How a new revision takes over."""

    strategy: RolloutStrategy = RolloutStrategy.AUTO
    """Surge needs a spare accelerator and never loses capacity; Replace needs none; Auto looks what is free."""
    progress_deadline: Duration = "15m"
    """Time without headway after which a rollout has failed and the last good revision returns. Loading a large model
    takes minutes, hence the default."""

    @property
    def progress_deadline_s(self) -> float:
        """Progress deadline in seconds."""
        return duration_s(self.progress_deadline)
