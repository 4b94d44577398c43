"""From a request's fields to the parameters of its sequences. Pure, but for the tokenizer's work on bad words."""

from collections.abc import Collection, Sequence

from pagefleet.engine.errors import RequestRefused
from pagefleet.engine.sampling_params import SamplingParameters, check_sampling_parameters
from pagefleet.engine.server.protocol import SamplingFields
from pagefleet.engine.tokenizer import Tokenizer


def sampling_parameters(
    fields: SamplingFields,
    *,
    vocabulary_size: int,
    eos_token_ids: Collection[int],
    max_tokens: int,
    seed: int,
    bad_words: Sequence[Sequence[int]] = (),
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
) -> SamplingParameters:
    """Fill in defaults and check ranges; `seed` is for a request that brings none. Raises RequestRefused."""
    top_k = 0 if fields.top_k is None or fields.top_k == -1 else fields.top_k  # -1 is vLLM's "off"
    allowed = fields.allowed_token_ids
    parameters = SamplingParameters(
        max_tokens=max_tokens,
        n=1 if fields.use_beam_search else fields.n or 1,
        use_beam_search=bool(fields.use_beam_search),
        beam_width=(fields.n or 1) if fields.use_beam_search else 1,
        length_penalty=_or_default(fields.length_penalty, 1.0),
        early_stopping=fields.early_stopping or False,
        min_tokens=fields.min_tokens or 0,
        temperature=_or_default(fields.temperature, 1.0),
        top_k=min(top_k, vocabulary_size),
        top_p=_or_default(fields.top_p, 1.0),
        min_p=_or_default(fields.min_p, 0.0),
        repetition_penalty=_or_default(fields.repetition_penalty, 1.0),
        presence_penalty=_or_default(fields.presence_penalty, 0.0),
        frequency_penalty=_or_default(fields.frequency_penalty, 0.0),
        logit_bias=_token_biases(fields.logit_bias or {}),
        seed=seed if fields.seed is None else fields.seed,
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=bool(fields.ignore_eos),
        allowed_token_ids=None if allowed is None else tuple(dict.fromkeys(allowed)),
        bad_words=tuple(tuple(word) for word in bad_words),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )
    check_sampling_parameters(parameters, vocabulary_size=vocabulary_size, eos_token_ids=eos_token_ids)
    return parameters


def bad_word_tokens(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """Return the token sequences that spell the words, at the start of a text and behind a space.

    Raises RequestRefused for a word without characters, or of nothing but spaces.
    """
    sequences: list[list[int]] = []
    for word in words:
        if not word.strip():
            raise RequestRefused(
                f"bad_words holds {word!r}, which would forbid every text; name words",
                parameter="bad_words",
                code="invalid_value",
            )
        for prefix in ("", " "):
            tokens = tokenizer.encode(prefix + word.lstrip(), add_special_tokens=False)
            if tokens and tokens not in sequences:
                sequences.append(tokens)
    return sequences


def _or_default(value: float | None, default: float) -> float:
    return default if value is None else value


def _token_biases(biases: dict[str, float]) -> dict[int, float]:
    """Read JSON's text keys as token ids; raises RequestRefused."""
    wrong = next((key for key in biases if not (key.isascii() and key.isdigit() and len(key) < 19)), None)
    if wrong is not None:
        raise RequestRefused(
            f'logit_bias has the key {wrong!r}; keys are token ids such as "50256"',
            parameter="logit_bias",
            code="invalid_value",
        )
    return {int(key): bias for key, bias in biases.items()}
