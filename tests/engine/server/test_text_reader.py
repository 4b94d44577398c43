"""Any tokens, cut into outputs in any way, read as the tokenizer decodes them, up to the first stop string."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet.engine.logprobs import TokenLogprobs
from pagefleet.engine.messages import RequestOutput
from pagefleet.engine.server.text_reader import Delta, OutputOptions, TextReader, join
from pagefleet.engine.tokenizer import Tokenizer, load_tokenizer
from tests.support.tiny_models import make_byte_level_tokenizer

tokens_of_any_kind = st.lists(st.integers(0, 520), min_size=1, max_size=40)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(make_byte_level_tokenizer(tmp_path_factory.mktemp("tokenizer")), None)


def outputs(tokens: list[int], cuts: list[int], finish_reason: str = "length") -> list[RequestOutput]:
    """Cut tokens into outputs of these sizes and one of the rest."""
    made = []
    for size in cuts:
        made.append(RequestOutput(request_id="r", new_token_ids=tokens[:size], logprobs=scores(tokens[:size])))
        tokens = tokens[size:]
    last = RequestOutput(request_id="r", new_token_ids=tokens, logprobs=scores(tokens), finish_reason=finish_reason)
    return [*made, last]


def scores(tokens: list[int]) -> list[TokenLogprobs]:
    return [TokenLogprobs(token, -1.0, 1) for token in tokens]


def read(reader: TextReader, made: list[RequestOutput]) -> Delta:
    deltas = []
    for output in made:
        deltas.append(reader.read(output))
        if deltas[-1].finish_reason is not None:
            break
    return join(deltas)


def shown(tokenizer: Tokenizer, tokens: list[int], *, skip: bool) -> str:
    return tokenizer.decode([token for token in tokens if not (skip and tokenizer.is_special(token))])


@given(tokens=tokens_of_any_kind, cuts=st.lists(st.integers(0, 4), max_size=8), skip=st.booleans())
@settings(max_examples=200, deadline=None)
def test_tokens_read_as_they_decode(tokenizer: Tokenizer, tokens: list[int], cuts: list[int], skip: bool) -> None:
    reader = TextReader(tokenizer, [], OutputOptions(skip_special_tokens=skip))

    whole = read(reader, outputs(tokens, cuts))

    assert whole.text == shown(tokenizer, tokens, skip=skip)
    assert [token.token_id for token in whole.tokens] == tokens
    assert reader.completion_tokens == len(tokens)


@given(text=texts, before=texts)
@settings(max_examples=200, deadline=None)
def test_an_echo_and_its_offsets(tokenizer: Tokenizer, text: str, before: str) -> None:
    prompt = tokenizer.encode(before, add_special_tokens=True)
    tokens = tokenizer.encode(text, add_special_tokens=False)

    whole = read(TextReader(tokenizer, prompt, OutputOptions(echo_prompt=True)), outputs(tokens, []))

    assert whole.text == before + text
    placed = [*whole.echoed, *whole.tokens]
    assert [token.token_id for token in placed] == [*prompt, *tokens]
    offsets = [token.text_offset for token in placed] + [len(whole.text)]
    for token, (start, end) in zip(placed[1:], pairwise(offsets[1:]), strict=True):
        spelled = tokenizer.token_bytes(token.token_id)
        assert spelled in whole.text[start : end + 1].encode()
        assert len(whole.text[start:end].encode()) <= len(spelled) + 3


@given(
    text=st.text("ab好", min_size=1, max_size=30),
    stop=st.lists(st.text("ab好", min_size=1, max_size=3), min_size=1, max_size=3),
    cuts=st.lists(st.integers(1, 4), max_size=8),
    include=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_the_first_stop_string_ends_it_however_it_is_cut(
    tokenizer: Tokenizer, text: str, stop: list[str], cuts: list[int], include: bool
) -> None:
    tokens = tokenizer.encode(text, add_special_tokens=False)
    options = OutputOptions(stop=tuple(stop), include_stop_in_output=include)

    reader = TextReader(tokenizer, [], options)
    whole = read(reader, outputs(tokens, cuts))

    ends = [(text.index(each) + len(each), text.index(each), each) for each in stop if each in text]
    if not ends:
        assert (whole.text, whole.finish_reason, whole.stop_reason) == (text, "length", None)
        return
    end, start, string = min(ends)
    assert (whole.text, whole.finish_reason, whole.stop_reason) == (text[: end if include else start], "stop", string)
    assert len(whole.tokens) == reader.completion_tokens
    counted = tokens[: reader.completion_tokens]
    assert string in tokenizer.decode(counted)
    assert not any(each in tokenizer.decode(counted[:-1]) for each in stop)


def test_a_prompt_alone_ends_where_it_ends(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("hello", add_special_tokens=True)
    reader = TextReader(tokenizer, prompt, OutputOptions(echo_prompt=True, is_prompt_only=True))

    whole = read(reader, outputs([80], []))

    assert (whole.text, whole.tokens, whole.finish_reason) == ("hello", (), "length")
    assert reader.completion_tokens == 0
    aborted = TextReader(tokenizer, prompt, OutputOptions(echo_prompt=True, is_prompt_only=True))
    assert read(aborted, outputs([], [], "abort")).finish_reason == "abort"
