"""Fixtures for all tests, the measured numbers at the end of a run, and `--no-avoidable-skip`."""

from collections.abc import Callable, Generator

import pytest

from tests.cluster.fixtures import api_cluster, node_cluster, pytest_collection_finish
from tests.support.models import UNAVAILABLE

__all__ = ["api_cluster", "node_cluster", "pytest_collection_finish"]

MEASURED = pytest.StashKey[list[str]]()
SKIPS = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-avoidable-skip",
        action="store_true",
        help="fail when a test was skipped for another reason than hardware or data that cannot be had here",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[MEASURED] = []
    config.stash[SKIPS] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and UNAVAILABLE not in str(report.longrepr):
        item.config.stash[SKIPS].append(report.nodeid)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.stash[SKIPS] and session.config.getoption("--no-avoidable-skip"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Take a line with a measured number; all of them are printed after the run."""
    return request.config.stash[MEASURED].append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[SKIPS] and config.getoption("--no-avoidable-skip"):
        terminalreporter.section("skipped although it could have run", red=True)
        for name in config.stash[SKIPS]:
            terminalreporter.write_line(name)
    lines = config.stash[MEASURED]
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)
