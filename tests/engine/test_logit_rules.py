from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet.engine.errors import RequestRefused
from pagefleet.engine.logit_rules import apply_rules, has_rules
from pagefleet.engine.sampler import sample
from pagefleet.engine.sampling_params import MAX_BAD_WORDS, SamplingParameters, check_sampling_parameters
from tests.support.sequences import END_TOKEN, make_sequence

VOCABULARY = 12
EOS = frozenset({END_TOKEN})


def allowed_after(outputs: list[int], **sampling: Any) -> set[int]:
    """Return the tokens that may follow these outputs."""
    sequence = make_sequence("s", prompt=3, max_tokens=50, **sampling)
    for token in outputs:
        sequence.append(token, frozenset())
    row = torch.zeros(VOCABULARY)
    apply_rules(row, sequence, EOS)
    return {token for token in range(VOCABULARY) if row[token] > -torch.inf}


@given(
    sampling=st.fixed_dictionaries(
        {},
        optional={
            "logit_bias": st.dictionaries(st.integers(0, 5), st.floats(1, 5), max_size=2),
            "repetition_penalty": st.sampled_from([1.0, 1.5]),
            "presence_penalty": st.sampled_from([0.0, 1.0]),
            "frequency_penalty": st.sampled_from([0.0, -1.0]),
            "min_tokens": st.integers(0, 3),
            "allowed_token_ids": st.just((2, 7)),
            "bad_words": st.just(((1,),)),
        },
    ),
    outputs=st.lists(st.integers(0, 9), max_size=4),
)
def test_a_row_without_rules_is_left_alone(sampling: dict[str, Any], outputs: list[int]) -> None:
    sequence = make_sequence("s", prompt=3, max_tokens=50, **sampling)
    for token in outputs:
        sequence.append(token, frozenset())
    row = torch.ones(VOCABULARY)

    apply_rules(row, sequence, EOS)

    assert has_rules(sequence) or torch.equal(row, torch.ones(VOCABULARY))


def test_plain_sampling_has_no_rules() -> None:
    assert not has_rules(make_sequence("s", prompt=3, max_tokens=50, temperature=0.7, top_p=0.9))


def test_only_allowed_tokens_are_left() -> None:
    assert allowed_after([], allowed_token_ids=(2, 7)) == {2, 7}
    assert allowed_after([], allowed_token_ids=(2, 7), logit_bias={5: 100.0}) == {2, 7}


def test_a_bad_word_is_ruled_out_at_its_last_token() -> None:
    words = ((1,), (2, 3), (2, 2, 4))
    everything = set(range(VOCABULARY))

    assert allowed_after([], bad_words=words) == everything - {1}
    assert allowed_after([2], bad_words=words) == everything - {1, 3}
    assert allowed_after([2, 2], bad_words=words) == everything - {1, 3, 4}
    assert allowed_after([2, 5], bad_words=words) == everything - {1}
    # The prompt's last token is 5: only the output counts.
    assert allowed_after([], bad_words=((5, 3),)) == everything


def test_min_tokens_and_bad_words_are_not_undone_by_a_bias() -> None:
    bias = {END_TOKEN: 100.0, 1: 100.0}

    assert allowed_after([], min_tokens=1, bad_words=((1,),), logit_bias=bias) == set(range(VOCABULARY)) - {
        END_TOKEN,
        1,
    }


def test_bad_words_give_way_when_nothing_else_is_allowed() -> None:
    assert allowed_after([2], allowed_token_ids=(2,), bad_words=((2, 2),)) == {2}


@given(
    outputs=st.lists(st.integers(0, 3), max_size=6),
    words=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), max_size=4),
)
@settings(max_examples=200, deadline=None)
def test_a_drawn_token_never_completes_a_bad_word(outputs: list[int], words: list[tuple[int, ...]]) -> None:
    sequence = make_sequence("s", max_tokens=50, bad_words=tuple(words))
    for token in outputs:
        sequence.append(token, frozenset())
    (drawn,) = sample(torch.randn(1, VOCABULARY), [sequence], EOS)
    assert drawn is not None
    after = [*outputs, drawn]
    assert not any(tuple(after[-len(word) :]) == word for word in words)


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"allowed_token_ids": ()}, "allowed_token_ids"),
        ({"allowed_token_ids": (VOCABULARY,)}, "allowed_token_ids"),
        ({"allowed_token_ids": (3,), "bad_words": ((3,),)}, "allowed_token_ids"),
        ({"allowed_token_ids": (END_TOKEN, 4), "stop_token_ids": (4,), "min_tokens": 1}, "allowed_token_ids"),
        ({"bad_words": tuple((token,) for token in range(VOCABULARY))}, "bad_words"),
        ({"stop_token_ids": tuple(range(VOCABULARY)), "min_tokens": 1}, "min_tokens"),
        ({"bad_words": ((),)}, "bad_words"),
        ({"bad_words": ((0, -1),)}, "bad_words"),
        ({"bad_words": ((1, 2),) * (MAX_BAD_WORDS + 1)}, "bad_words"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"repetition_penalty": 1e-30}, "repetition_penalty"),
        ({"repetition_penalty": 1e30}, "repetition_penalty"),
    ],
)
def test_what_leaves_no_token_or_has_no_meaning_is_refused(fields: dict[str, object], parameter: str) -> None:
    with pytest.raises(RequestRefused, match=parameter) as caught:
        check_sampling_parameters(
            SamplingParameters(**{"max_tokens": 5, **fields}),  # type: ignore[arg-type]
            vocabulary_size=VOCABULARY,
            eos_token_ids=EOS,
        )
    assert caught.value.parameter == parameter


def test_one_token_that_may_come_is_enough() -> None:
    check_sampling_parameters(
        SamplingParameters(max_tokens=5, min_tokens=1, allowed_token_ids=(END_TOKEN, 3), bad_words=((END_TOKEN,),)),
        vocabulary_size=VOCABULARY,
        eos_token_ids=EOS,
    )
