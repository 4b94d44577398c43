from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet.engine.detokenizer import MAX_HELD_TOKENS, Detokenizer
from pagefleet.engine.tokenizer import Tokenizer, load_tokenizer
from tests.support.tiny_models import END_TOKEN, make_byte_level_tokenizer, make_metaspace_tokenizer

MAKERS = (make_byte_level_tokenizer, make_metaspace_tokenizer)


@pytest.fixture(scope="module", params=[(make, is_bytewise) for make in MAKERS for is_bytewise in (True, False)])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Each kind of tokenizer, read by its bytes and, as one of an unknown kind is, through the window."""
    make, is_bytewise = request.param
    folder: Path = make(tmp_path_factory.mktemp("tokenizer"))
    loaded = load_tokenizer(folder, None)
    assert loaded.is_bytewise
    if not is_bytewise:
        loaded._spelling = None
    return loaded


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(make_byte_level_tokenizer(tmp_path_factory.mktemp("tokenizer")), None)


def pieces_of(tokenizer: Tokenizer, prompt: list[int], tokens: list[int], *, skip: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens=skip)
    return [*(detokenizer.append(token) for token in tokens), detokenizer.flush()]


# No surrogates (no text has them) and no U+FFFD (it is what the decoders write for broken bytes).
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd\x00"), max_size=40)


@given(before=texts, after=texts)
@settings(max_examples=300, deadline=None)
def test_pieces_make_the_text_and_no_piece_breaks_a_character(tokenizer: Tokenizer, before: str, after: str) -> None:
    prompt = tokenizer.encode(before, add_special_tokens=True)
    tokens = tokenizer.encode(after, add_special_tokens=False)

    *pieces, rest = pieces_of(tokenizer, prompt, tokens)

    whole = tokenizer.decode(prompt[1:] + tokens)
    assert whole.endswith("".join([*pieces, rest]))
    assert whole == tokenizer.decode(prompt[1:]) + "".join([*pieces, rest]) or not prompt[1:]
    assert rest == ""
    assert "\ufffd" not in "".join(pieces)


@given(st.lists(st.integers(0, 600), max_size=60), st.booleans())
@settings(max_examples=500, deadline=None)
def test_any_byte_level_tokens_stream_as_they_decode(byte_level: Tokenizer, tokens: list[int], skip: bool) -> None:
    """Broken bytes, special tokens and ids beyond the vocabulary included."""
    shown = [token for token in tokens if not (skip and byte_level.is_special(token))]

    assert "".join(pieces_of(byte_level, [], tokens, skip=skip)) == byte_level.decode(shown)


@given(texts)
@settings(max_examples=200, deadline=None)
def test_bytes_of_tokens_are_the_bytes_of_the_text(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text, add_special_tokens=False)
    spelled = b"".join(tokenizer.token_bytes(token) for token in tokens).decode(errors="replace")

    if tokenizer.is_bytewise:
        assert spelled.removeprefix(" " if tokenizer.drops_first_space else "") == tokenizer.decode(tokens)


def test_a_character_that_the_prompt_began_is_completed(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("🦀!", add_special_tokens=False)

    assert "".join(pieces_of(byte_level, tokens[:2], tokens[2:])) == "🦀!"


def test_a_character_waits_for_its_last_byte(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("🦀", add_special_tokens=False)
    assert len(tokens) >= 3

    pieces = pieces_of(tokenizer, tokenizer.encode("x", add_special_tokens=False), tokens)

    assert [piece for piece in pieces if piece.strip()] == ["🦀"]


def test_an_unfinished_character_is_flushed_as_replacement(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("x🦀", add_special_tokens=False)[:-1]

    pieces = pieces_of(tokenizer, [], tokens)

    assert "".join(pieces).strip("\ufffd") == "x"
    assert pieces[-1].endswith("\ufffd")


def test_endless_broken_bytes_are_not_held_forever(tokenizer: Tokenizer) -> None:
    broken = next(token for token in tokenizer.encode("🦀", add_special_tokens=False)[::-1])

    detokenizer = Detokenizer(tokenizer, [], skip_special_tokens=True)
    pieces = [detokenizer.append(broken) for _ in range(5 * MAX_HELD_TOKENS)]

    assert sum(len(piece) > 0 for piece in pieces) >= 4


def test_special_tokens_are_shown_only_on_request(tokenizer: Tokenizer) -> None:
    tokens = [*tokenizer.encode("hello", add_special_tokens=False), 1, 1]

    assert "".join(pieces_of(tokenizer, [0], tokens)) == "hello"
    assert "".join(pieces_of(tokenizer, [0], tokens, skip=False)).lstrip() == f"hello{END_TOKEN}{END_TOKEN}"


def test_a_leading_space_survives(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("hello", add_special_tokens=True)
    continuations = [tokenizer.encode(text, add_special_tokens=False) for text in (" world", "world")]
    tokens = next(tokens for tokens in continuations if tokenizer.decode(prompt[1:] + tokens) == "hello world")

    assert "".join(pieces_of(tokenizer, prompt, tokens)) == " world"
