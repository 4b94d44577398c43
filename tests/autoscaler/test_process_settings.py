"""`pagefleet.autoscaler.process_settings`: flags win over the environment, and mistakes get a sentence."""

import pytest

from pagefleet.api.process_environment import SettingsError
from pagefleet.autoscaler.process_settings import LoggedTicks, read_settings


def test_what_the_chart_sets() -> None:
    settings = read_settings(
        {
            "PAGEFLEET_NAMESPACE": "fleet",
            "PAGEFLEET_POD_NAME": "autoscaler-1",
            "PAGEFLEET_WATCH_NAMESPACES": "a, b",
            "PAGEFLEET_DECISION_LOG_TICKS": "all",
            "PAGEFLEET_LOG_LEVEL": "DEBUG",
            "PAGEFLEET_LEASE_DURATION": "20",
            "KUBERNETES_SERVICE_HOST": "10.0.0.1",
            "KUBECONFIG": "ignored in a pod",
        }
    )
    assert (settings.namespace, settings.identity, settings.namespaces) == ("fleet", "autoscaler-1", ("a", "b"))
    assert (settings.logged_ticks, settings.log_level, settings.lease_duration_s) == (LoggedTicks.ALL, "DEBUG", 20.0)
    assert (settings.kubeconfig, settings.http_port, settings.decision_log) == (None, 8080, "-")


def test_flags_win() -> None:
    environment = {"KUBECONFIG": "theirs", "PAGEFLEET_WATCH_NAMESPACES": "a", "PAGEFLEET_HTTP_PORT": "1"}
    settings = read_settings(environment, kubeconfig="ours", namespaces=("b",), http_port=0)
    assert (settings.kubeconfig, settings.namespaces, settings.http_port) == ("ours", ("b",), 0)
    assert read_settings(environment).kubeconfig == "theirs"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("PAGEFLEET_LEASE_DURATION", "soon", "is 'soon', which is no whole number from 1; write for example 12"),
        ("PAGEFLEET_LEASE_DURATION", "0", "is '0', which is no whole number from 1"),
        ("PAGEFLEET_HTTP_PORT", "70000", "the HTTP port is 70000, which is no port"),
        ("PAGEFLEET_DECISION_LOG_TICKS", "some", "is 'some'; write one of changed, all, none"),
        ("PAGEFLEET_LOG_LEVEL", "loud", "is 'loud'; write one of INFO, DEBUG, WARNING, ERROR"),
    ],
)
def test_a_mistake_gets_a_sentence(name: str, value: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        read_settings({name: value})
