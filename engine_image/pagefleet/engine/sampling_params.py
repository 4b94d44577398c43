"""How one sequence chooses its tokens and when it stops."""

import math
from typing import Literal

import msgspec

from pagefleet.engine.errors import RequestRefused

GREEDY_TEMPERATURE = 1e-5
"""Below this the distribution is a point in float32, so the most likely token is taken (vLLM's limit)."""

MAX_LOGIT_BIAS = 100.0
"""OpenAI's limit on the magnitude of a logit bias."""

FinishReason = str
"""`stop` (end token, stop token or stop string), `length` (token or context limit), `abort` or `error`."""


class SamplingParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describe the sampling of one sequence; names, defaults and meaning are vLLM's and OpenAI's."""

    max_tokens: int
    """Tokens to generate at most; the server has already turned "not given" into what the context allows."""
    n: int = 1
    """Choices to generate from one prompt; choice `i` draws as a request of its own with `seed + i` would."""
    min_tokens: int = 0
    """Tokens before which end and stop tokens cannot be chosen."""
    temperature: float = 1.0
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this."""
    min_p: float = 0.0
    """Keep tokens at least this likely relative to the most likely one."""
    repetition_penalty: float = 1.0
    """Divide (multiply, if negative) the logits of tokens in prompt and output (arXiv 1909.05858)."""
    presence_penalty: float = 0.0
    """Subtract once from the logit of every token in the output."""
    frequency_penalty: float = 0.0
    """Subtract for each time that the token is in the output."""
    logit_bias: dict[int, float] = {}
    """Token id to a number added to its logit."""
    seed: int = 0
    """Makes the draws reproducible whatever else is in the batch; the server fills it when not given."""
    stop_token_ids: tuple[int, ...] = ()
    """Extra token ids that end the sequence."""
    ignore_eos: bool = False
    """Go on after the model's end tokens."""
    use_beam_search: bool = False
    """Look for the likeliest outputs instead of drawing them; `beam_width` of them come, best first, at the end."""
    beam_width: int = 1
    """Beams, and outputs, of a beam search."""
    length_penalty: float = 1.0
    """Outputs of a beam search score sum(log p) / length ** length_penalty: above 0 prefers long ones."""
    early_stopping: bool | Literal["never"] = False
    """End a beam search at `beam_width` outputs (True), when better ones are unlikely (False) or impossible."""

    @property
    def choices(self) -> int:
        """Return how many outputs the request gets."""
        return self.beam_width if self.use_beam_search else self.n

    @property
    def is_greedy(self) -> bool:
        """Tell whether the most likely token is always taken."""
        return self.temperature < GREEDY_TEMPERATURE or self.use_beam_search

    @property
    def needs_token_counts(self) -> bool:
        """Tell whether earlier tokens change the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


def check_sampling_parameters(parameters: SamplingParameters, *, vocabulary_size: int) -> None:
    """Refuse values that have no meaning, naming the field and a value that would work.

    Raises RequestRefused.
    """
    p = parameters
    checks = (
        ("max_tokens", p.max_tokens, p.max_tokens >= 1, "at least 1"),
        ("n", p.n, p.n >= 1, "at least 1"),
        ("min_tokens", p.min_tokens, 0 <= p.min_tokens <= p.max_tokens, f"from 0 to max_tokens ({p.max_tokens})"),
        ("temperature", p.temperature, 0 <= p.temperature <= 2, "from 0 to 2"),
        ("top_k", p.top_k, p.top_k >= 0, "0 (off) or at least 1"),
        ("top_p", p.top_p, 0 < p.top_p <= 1, "above 0 and at most 1"),
        ("min_p", p.min_p, 0 <= p.min_p <= 1, "from 0 to 1"),
        ("repetition_penalty", p.repetition_penalty, 0 < p.repetition_penalty < math.inf, "above 0, such as 1.1"),
        ("presence_penalty", p.presence_penalty, -2 <= p.presence_penalty <= 2, "from -2 to 2"),
        ("frequency_penalty", p.frequency_penalty, -2 <= p.frequency_penalty <= 2, "from -2 to 2"),
    )
    for name, value, is_valid, allowed in checks:
        if not is_valid:
            raise RequestRefused(f"{name} is {value}; it must be {allowed}", parameter=name, code="invalid_value")
    if p.use_beam_search:
        _check_beam_search(p)
    for token_id, bias in p.logit_bias.items():
        if not 0 <= token_id < vocabulary_size:
            raise RequestRefused(
                f"logit_bias names token {token_id}; token ids go from 0 to {vocabulary_size - 1}",
                parameter="logit_bias",
                code="invalid_value",
            )
        if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:
            raise RequestRefused(
                f"logit_bias for token {token_id} is {bias}; it must be from -100 to 100",
                parameter="logit_bias",
                code="invalid_value",
            )
    for token_id in p.stop_token_ids:
        if not 0 <= token_id < vocabulary_size:
            raise RequestRefused(
                f"stop_token_ids names token {token_id}; token ids go from 0 to {vocabulary_size - 1}",
                parameter="stop_token_ids",
                code="invalid_value",
            )


def _check_beam_search(p: SamplingParameters) -> None:
    """Refuse what a beam search does not look at, whatever the value asks for."""
    checks = (
        ("beam_width", p.beam_width, p.beam_width >= 1, "at least 1"),
        ("length_penalty", p.length_penalty, math.isfinite(p.length_penalty), "a finite number, such as 1.0"),
        ("n", p.n, p.n == 1, "1 with use_beam_search, which returns beam_width outputs"),
        ("repetition_penalty", p.repetition_penalty, p.repetition_penalty == 1, "1 with use_beam_search"),
        ("presence_penalty", p.presence_penalty, p.presence_penalty == 0, "0 with use_beam_search"),
        ("frequency_penalty", p.frequency_penalty, p.frequency_penalty == 0, "0 with use_beam_search"),
        ("logit_bias", p.logit_bias, not p.logit_bias, "empty with use_beam_search"),
    )
    for name, value, is_valid, allowed in checks:
        if not is_valid:
            raise RequestRefused(f"{name} is {value}; it must be {allowed}", parameter=name, code="invalid_value")
