import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet.engine.stop_strings import StopStringFilter


def run(pieces: list[str], stops: list[str], *, include: bool = False) -> tuple[str, str | None]:
    stop_filter = StopStringFilter(stops, include_in_output=include)
    shown = ""
    for piece in pieces:
        shown += stop_filter.feed(piece)
        if stop_filter.matched is not None:
            return shown, stop_filter.matched
    return shown + stop_filter.finish(), None


def reference(text: str, stops: list[str], *, include: bool) -> tuple[str, str | None]:
    """Look at the text character by character, with nothing clever."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


def cut(text: str, cuts: list[int]) -> list[str]:
    bounds = [0, *sorted(position % (len(text) + 1) for position in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


texts = st.text(alphabet="abc", max_size=30)
stop_lists = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=4)


@given(texts, st.lists(st.integers(0, 30)), stop_lists, st.booleans())
def test_any_cut_gives_what_the_whole_text_gives(text: str, cuts: list[int], stops: list[str], include: bool) -> None:
    assert run(cut(text, cuts), stops, include=include) == reference(text, stops, include=include)


@given(texts, st.lists(st.integers(0, 30)), stop_lists)
def test_only_what_may_become_a_stop_string_is_held(text: str, cuts: list[int], stops: list[str]) -> None:
    stop_filter = StopStringFilter(stops)
    seen = shown = ""
    for piece in cut(text, cuts):
        seen += piece
        shown += stop_filter.feed(piece)
        if stop_filter.matched is not None:
            return
        assert seen.startswith(shown)
        held = seen[len(shown) :]
        ends = [seen[start:] for start in range(len(seen))]
        candidates = [end for end in ends if any(len(end) < len(stop) and stop.startswith(end) for stop in stops)]
        assert held == max(candidates, key=len, default="")


@pytest.mark.parametrize(
    ("pieces", "stops", "include", "shown", "matched"),
    [
        (["Hello wor", "ld"], ["world"], False, "Hello ", "world"),
        (["Hello wor", "ld!"], ["world"], True, "Hello world", "world"),
        (["Hello wor", "k"], ["world"], False, "Hello work", None),
        (["aab"], ["ab", "aab"], False, "", "aab"),
        (["ab"], ["b", "abc"], False, "a", "b"),
        (["abc"], ["abc", "b"], False, "a", "b"),
        (["no stops"], [], False, "no stops", None),
    ],
)
def test_cases(pieces: list[str], stops: list[str], include: bool, shown: str, matched: str | None) -> None:
    assert run(pieces, stops, include=include) == (shown, matched)


def test_a_stop_string_completed_too_early_does_not_end_the_text() -> None:
    stop_filter = StopStringFilter(["ab"])

    assert stop_filter.feed("ab", may_stop=False) == "ab"
    assert stop_filter.feed("a", may_stop=False) == ""
    assert stop_filter.feed("b") == ""
    assert stop_filter.matched == "ab"


def test_text_is_held_across_the_minimum() -> None:
    stop_filter = StopStringFilter(["aa"])

    assert stop_filter.feed("aa", may_stop=False) == "a"
    assert stop_filter.feed("a") == ""
    assert stop_filter.matched == "aa"
