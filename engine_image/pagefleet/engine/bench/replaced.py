"""Put something else in the place of an attribute for a while: what measures must not stay in what is measured."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Give an object or module another attribute of that name while the block runs."""
    own = vars(owner)
    had_it, before = name in own, own.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had_it:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
