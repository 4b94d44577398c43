"""Every bound of the schema on a real API server, and the manifest reader beside it."""

import pytest

from pagefleet.api.client_connection import Connection
from tests.crds.bound_cases import BoundCase, bound_cases
from tests.crds.judge import ask_reader, ask_server

CASES = bound_cases()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_reader_finds_it(case: BoundCase) -> None:
    (mistake,) = ask_reader(case.refused)
    assert mistake.startswith(f"{case.field}: ")
    assert case.accepted is None or ask_reader(case.accepted) == []


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_the_server_finds_it(connection: Connection, case: BoundCase) -> None:
    refused = await ask_server(connection, case.refused)
    assert not refused.is_accepted
    assert refused.names(case.field, case.sentence), refused.message
    if case.accepted is not None:
        accepted = await ask_server(connection, case.accepted)
        assert accepted.is_accepted, accepted.message
