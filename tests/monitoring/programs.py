"""Debian's Prometheus on this machine: the server, and promtool."""

import shutil

import pytest


def prometheus_program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`; skips where it is missing."""
    if found := shutil.which(name):
        return found
    pytest.skip(f"{name} is missing: install Debian's package prometheus, or a release of Prometheus")
