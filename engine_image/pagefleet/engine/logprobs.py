"""How likely the model found a token, and which tokens it found likelier."""

import msgspec

LEAST_LOGPROB = -9999.0
"""What a log-probability below this or not finite is reported as: JSON has no infinity (vLLM's value)."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Score one token by the model's own distribution: before temperature, penalties, biases and every other rule."""

    token_id: int
    logprob: float
    """Natural logarithm of the token's probability."""
    rank: int
    """1 for the likeliest token; tokens that tie share a rank."""
    top: tuple[tuple[int, float], ...] = ()
    """Token ids and log-probabilities of the likeliest tokens, best first, as many as were asked for."""
