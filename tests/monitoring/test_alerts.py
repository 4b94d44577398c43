"""The alerts: promtool runs each where it must fire and where it must not, and each has a runbook."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.monitoring.programs import prometheus_program
from tests.monitoring.promql import ALERTS, RUNBOOKS, SERIES, alert_rules, series_read

CASES = Path(__file__).parent / "alert_cases.yaml"
RULES = {rule["alert"]: rule for rule in alert_rules()}


def test_promtool_sees_each_alert_fire_and_stay_silent(tmp_path: Path) -> None:
    cases = yaml.safe_load(CASES.read_text())
    cases["rule_files"] = [str(ALERTS)]
    file = tmp_path / "cases.yaml"
    file.write_text(yaml.safe_dump(cases))
    done = subprocess.run([prometheus_program("promtool"), "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_seen_both_ways() -> None:
    """A case holds a second service, or another time, where the alert stays silent."""
    fires, silent = set(), set()
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        services = set(re.findall(r'(?:service|pod)="([\w-]+)"', str(case["input_series"])))
        for check in case["alert_rule_test"]:
            expected = check["exp_alerts"]
            if expected:
                fires.add(check["alertname"])
            if len(expected) < len(services):
                silent.add(check["alertname"])
    assert fires == silent == RULES.keys()


@pytest.mark.parametrize("name", RULES)
def test_an_alert_says_what_and_leads_to_a_runbook(name: str) -> None:
    rule = RULES[name]
    assert series_read(rule["expr"]) <= SERIES.keys()
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert {*rule["annotations"]} == {"summary", "description"}, "the chart adds the runbook"
    page = (RUNBOOKS / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n")
    assert re.findall("^## (.*)", page, re.M) == ["What it means", "What to look at", "What to do"]


def test_every_runbook_has_its_alert() -> None:
    assert {page.stem for page in RUNBOOKS.iterdir()} == RULES.keys()
    for page in RUNBOOKS.iterdir():
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            assert (RUNBOOKS / target).exists(), f"{page.name}: {target}"
