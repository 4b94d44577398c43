"""Fixtures for all tests, the measured numbers at the end of a run, and `--no-avoidable-skip`."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from xdist.remote import Producer

from tests.cluster.fixtures import api_cluster, node_cluster, pytest_collection_finish
from tests.support.models import UNAVAILABLE
from tests.support.work_groups import GroupScheduling, give_way, order_tests

__all__ = ["api_cluster", "node_cluster", "pytest_collection_finish"]

MEASURED = "measured"

if not Path("/dev/nvidiactl").exists():
    # Read when Triton is imported, which transformers does too.
    os.environ.setdefault("TRITON_INTERPRET", "1")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell script starts what runs in its background so, and the commands that tests start would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-avoidable-skip",
        action="store_true",
        help="fail when a test was skipped for another reason than hardware or data that cannot be had here",
    )


def pytest_configure(config: pytest.Config) -> None:
    give_way(os.environ.get("PYTEST_XDIST_WORKER"))
    config.pluginmanager.register(Harvest(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order_tests(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    return GroupScheduling(config, log)


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Take a line with a measured number; all of them are printed after the run."""
    return lambda line: request.node.user_properties.append((MEASURED, line))


class Harvest:
    """Collect from reports, which workers send, what is printed at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._forbids_skips = bool(config.getoption("--no-avoidable-skip"))
        self._lines: list[str] = []
        self._skips: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and UNAVAILABLE not in str(report.longrepr):
            self._skips.append(report.nodeid)
        if report.when == "teardown":
            self._lines += [str(line) for name, line in report.user_properties if name == MEASURED]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._skips and self._forbids_skips:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._skips and self._forbids_skips:
            terminalreporter.section("skipped although it could have run", red=True)
            for name in self._skips:
                terminalreporter.write_line(name)
        if self._lines:
            terminalreporter.section("measured")
            for line in self._lines:
                terminalreporter.write_line(line)
