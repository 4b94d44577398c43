"""How one sequence chooses its tokens and when it stops."""

from collections.abc import Collection, Iterable
from itertools import chain
from typing import Literal

import msgspec

from pagefleet.engine.errors import RequestRefused

GREEDY_TEMPERATURE = 1e-5
"""Below this the distribution is a point in float32, so the most likely token is taken (vLLM's limit)."""

MAX_LOGIT_BIAS = 100.0
"""OpenAI's limit on the magnitude of a logit bias."""

MAX_LOGPROBS = 20
"""OpenAI's limit on the likeliest tokens at one position."""

MAX_BAD_WORDS = 1024
"""Each is compared with the output in every step."""

LEAST_REPETITION_PENALTY, MOST_REPETITION_PENALTY = 0.01, 100.0
"""Far beyond what is useful; outside, float32 logits overflow."""

MOST_LENGTH_PENALTY = 5.0
"""A million tokens to this power is still a float32."""

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
    allowed_token_ids: tuple[int, ...] | None = None
    """The only tokens that may be chosen; None allows all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that the output never completes."""
    logprobs: int | None = None
    """Likeliest tokens reported with each output token's own log-probability; None reports nothing."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens from the second on."""
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

    @property
    def needs_prompt_logits(self) -> bool:
        """Tell whether every position of the prompt must be computed, whatever a cache holds of it."""
        return self.prompt_logprobs is not None


def check_sampling_parameters(
    parameters: SamplingParameters, *, vocabulary_size: int, eos_token_ids: Collection[int] = ()
) -> None:
    """Refuse values that have no meaning, naming the field and a value that would work.

    Raises RequestRefused.
    """
    _check_ranges(parameters)
    _check_token_ids(parameters, vocabulary_size)
    _check_choice_remains(parameters, vocabulary_size, eos_token_ids)


def _check_ranges(p: SamplingParameters) -> None:
    least, most = LEAST_REPETITION_PENALTY, MOST_REPETITION_PENALTY
    up_to_limit = f"from 0 to {MAX_LOGPROBS}"
    checks = (
        ("max_tokens", p.max_tokens, p.max_tokens >= 1, "at least 1"),
        ("n", p.n, p.n >= 1, "at least 1"),
        ("min_tokens", p.min_tokens, 0 <= p.min_tokens <= p.max_tokens, f"from 0 to max_tokens ({p.max_tokens})"),
        ("temperature", p.temperature, 0 <= p.temperature <= 2, "from 0 to 2"),
        ("top_k", p.top_k, p.top_k >= 0, "0 (off) or at least 1"),
        ("top_p", p.top_p, 0 < p.top_p <= 1, "above 0 and at most 1"),
        ("min_p", p.min_p, 0 <= p.min_p <= 1, "from 0 to 1"),
        (
            "repetition_penalty",
            p.repetition_penalty,
            least <= p.repetition_penalty <= most,
            f"from {least} to {most:g}, such as 1.1",
        ),
        ("presence_penalty", p.presence_penalty, -2 <= p.presence_penalty <= 2, "from -2 to 2"),
        ("frequency_penalty", p.frequency_penalty, -2 <= p.frequency_penalty <= 2, "from -2 to 2"),
        ("logprobs", p.logprobs, p.logprobs is None or 0 <= p.logprobs <= MAX_LOGPROBS, up_to_limit),
        (
            "prompt_logprobs",
            p.prompt_logprobs,
            p.prompt_logprobs is None or 0 <= p.prompt_logprobs <= MAX_LOGPROBS,
            up_to_limit,
        ),
    )
    for name, value, is_valid, allowed in checks:
        if not is_valid:
            raise _refused(name, f"{name} is {value}; it must be {allowed}")
    if p.use_beam_search:
        _check_beam_search(p)
    for token_id, bias in p.logit_bias.items():
        if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:
            raise _refused("logit_bias", f"logit_bias for token {token_id} is {bias}; it must be from -100 to 100")
    if len(p.bad_words) > MAX_BAD_WORDS:
        raise _refused("bad_words", f"bad_words makes {len(p.bad_words)} token sequences; at most {MAX_BAD_WORDS} work")
    if not all(p.bad_words):
        raise _refused("bad_words", "bad_words holds an empty word, which would forbid every text")


def _check_token_ids(p: SamplingParameters, vocabulary_size: int) -> None:
    named: tuple[tuple[str, Iterable[int]], ...] = (
        ("logit_bias", p.logit_bias),
        ("stop_token_ids", p.stop_token_ids),
        ("allowed_token_ids", p.allowed_token_ids or ()),
        ("bad_words", chain.from_iterable(p.bad_words)),
    )
    for name, token_ids in named:
        for token_id in token_ids:
            if not 0 <= token_id < vocabulary_size:
                raise _refused(name, f"{name} names token {token_id}; token ids go from 0 to {vocabulary_size - 1}")


def _check_choice_remains(p: SamplingParameters, vocabulary_size: int, eos_token_ids: Collection[int]) -> None:
    if p.allowed_token_ids is None and not p.bad_words and p.min_tokens == 0:
        return
    forbidden = {word[0] for word in p.bad_words if len(word) == 1}
    if p.min_tokens > 0:
        forbidden |= {*eos_token_ids, *p.stop_token_ids}
    allowed = range(vocabulary_size) if p.allowed_token_ids is None else p.allowed_token_ids
    if all(token_id in forbidden for token_id in allowed):
        given = {
            "allowed_token_ids": p.allowed_token_ids is not None,
            "bad_words": bool(p.bad_words),
            "min_tokens": True,
        }
        name = next(name for name, is_given in given.items() if is_given)
        raise _refused(
            name,
            f"{name} leaves no token to choose: one that is no bad word, and with min_tokens no stop token, must be "
            "allowed",
        )


def _check_beam_search(p: SamplingParameters) -> None:
    """Refuse what a beam search does not look at, whatever the value asks for."""
    checks = (
        ("beam_width", p.beam_width, p.beam_width >= 1, "at least 1"),
        ("length_penalty", p.length_penalty, abs(p.length_penalty) <= MOST_LENGTH_PENALTY, "from -5 to 5, such as 1.0"),
        ("n", p.n, p.n == 1, "1 with use_beam_search, which returns beam_width outputs"),
        ("repetition_penalty", p.repetition_penalty, p.repetition_penalty == 1, "1 with use_beam_search"),
        ("presence_penalty", p.presence_penalty, p.presence_penalty == 0, "0 with use_beam_search"),
        ("frequency_penalty", p.frequency_penalty, p.frequency_penalty == 0, "0 with use_beam_search"),
        ("logit_bias", p.logit_bias, not p.logit_bias, "empty with use_beam_search"),
        ("allowed_token_ids", p.allowed_token_ids, p.allowed_token_ids is None, "left out with use_beam_search"),
        ("bad_words", p.bad_words, not p.bad_words, "empty with use_beam_search"),
        ("prompt_logprobs", p.prompt_logprobs, p.prompt_logprobs is None, "left out with use_beam_search"),
    )
    for name, value, is_valid, allowed in checks:
        if not is_valid:
            raise _refused(name, f"{name} is {value}; it must be {allowed}")


def _refused(parameter: str, sentence: str) -> RequestRefused:
    return RequestRefused(sentence, parameter=parameter, code="invalid_value")
