"""Every rule on a real API server, and the manifest reader in the same words."""

import pytest

from pagefleet.api.client_connection import Connection
from tests.crds.judge import ask_reader, ask_server
from tests.crds.rule_cases import CASES, RuleCase
from tests.crds.schema_walk import FoundRule, rules


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: f"{rule.field}: {rule.rule[:40]}")
def test_every_rule_has_a_case(rule: FoundRule) -> None:
    assert any(case.field == rule.field and rule.says(case.sentence) for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_reader_says_it(case: RuleCase) -> None:
    assert ask_reader(case.refused) == [f"{case.field}: {case.sentence}"]
    assert ask_reader(case.accepted) == []


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_the_server_says_the_same(connection: Connection, case: RuleCase) -> None:
    refused = await ask_server(connection, case.refused)
    assert not refused.is_accepted
    assert refused.names(case.field, case.sentence), refused.message
    accepted = await ask_server(connection, case.accepted)
    assert accepted.is_accepted, accepted.message
