"""Why there is no plan, as typed refusals: one sentence for the user, and the numbers for a program."""


class CannotPlan(Exception):
    """Refuse, saying in one sentence which input is wrong and what would work."""

    def __init__(self, sentence: str) -> None:
        super().__init__(" ".join(sentence.split()))  # a wrong value may bring line breaks along


class DoesNotFit(CannotPlan):
    """Refuse a model that an accelerator cannot hold."""

    def __init__(self, sentence: str, *, needed_bytes: int, usable_bytes: int, fixes: tuple[str, ...]) -> None:
        super().__init__(f"{sentence} Fix: {'; or '.join(fixes)}.")
        self.sentence = sentence
        """The numbers, without a fix."""
        self.needed_bytes = needed_bytes
        """What weights, activations, runtime and the smallest cache take of one accelerator."""
        self.usable_bytes = usable_bytes
        """What the engine may use of one accelerator."""
        self.fixes = fixes
        """What would make it fit, the easiest first."""


class ObjectiveOutOfReach(CannotPlan):
    """Refuse a latency objective that even a single request misses."""

    def __init__(self, sentence: str, *, objective: str, least_s: float) -> None:
        super().__init__(sentence)
        self.objective = objective
        """Which latency it is."""
        self.least_s = least_s
        """What one request alone takes."""
