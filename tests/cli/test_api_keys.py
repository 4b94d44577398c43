"""`pagefleet.cli.api_keys`."""

import pytest

from pagefleet.cli.api_keys import first_api_key


@pytest.mark.parametrize(("keys", "first"), [(None, None), ("", None), (" ", None), ("one", "one"), ("one two", "one")])
def test_a_client_sends_the_first_key(keys: str | None, first: str | None) -> None:
    assert first_api_key(keys) == first
