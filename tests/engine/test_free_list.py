from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet.engine.free_list import FreeList

BLOCKS = 6
operations = st.lists(st.tuples(st.sampled_from(["pop", "remove", "first", "last"]), st.integers(0, BLOCKS - 1)))


@given(operations)
def test_it_behaves_like_a_deque(steps: list[tuple[str, int]]) -> None:
    free, model = FreeList(BLOCKS), deque(range(BLOCKS))
    for operation, block in steps:
        if operation == "pop" and model:
            assert free.pop_first() == model.popleft()
        elif operation == "remove" and block in model:
            free.remove(block)
            model.remove(block)
        elif operation == "first" and block not in model:
            free.push_first(block)
            model.appendleft(block)
        elif operation == "last" and block not in model:
            free.push_last(block)
            model.append(block)
        assert list(free) == list(model)
        assert len(free) == len(model)
        assert all((each in free) == (each in model) for each in range(BLOCKS))


def test_an_empty_list_gives_nothing() -> None:
    with pytest.raises(IndexError):
        FreeList(0).pop_first()
