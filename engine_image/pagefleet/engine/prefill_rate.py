"""How fast prompts are computed, learnt from steps: what a queue of so many tokens means in seconds. Pure."""

HALF_LIFE_S = 10.0
"""Observations of this age count half: a burst of decodes or of prompts soon shows."""


class PrefillRate:
    """Learn the prompt tokens per second at which a queue drains, decodes beside them and pauses between included."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """Return the rate; None before the first observation."""
        return self._tokens / self._seconds if self._tokens > 0 else None

    def observe(self, tokens: int, duration_s: float, *, leaves_prompts: bool) -> None:
        """Take in one step that computed so many prompt tokens.

        A step that leaves none to compute might have computed more, so it can raise the rate but not lower it, and
        is no measurement by itself.
        """
        if duration_s <= 0:
            return
        if not leaves_prompts:
            if self._tokens > 0:
                self._tokens = max(self._tokens, tokens / duration_s * self._seconds)
            return
        decay = 0.5 ** (duration_s / HALF_LIFE_S)
        self._tokens = self._tokens * decay + tokens
        self._seconds = self._seconds * decay + duration_s
