"""`pagefleet.operator.settings`: flags, then environment, then defaults; mistakes are sentences."""

import pytest

from pagefleet.api.process_environment import SettingsError
from pagefleet.operator.hub import Hub
from pagefleet.operator.settings import read_settings


def test_defaults_need_no_environment() -> None:
    settings = read_settings({})
    assert settings.namespaces == ()
    assert settings.http_port == 8080
    assert settings.render.engine_image.startswith("pagefleet/engine:")


def test_the_environment_is_read_and_flags_win() -> None:
    env = {
        "PAGEFLEET_ENGINE_IMAGE": "registry.example/engine@sha256:1",
        "PAGEFLEET_ENGINE_PULL_SECRETS": "one, two",
        "PAGEFLEET_NAMESPACE": "system",
        "PAGEFLEET_WATCH_NAMESPACES": "a,b",
        "PAGEFLEET_POD_NAME": "operator-1",
        "PAGEFLEET_HTTP_PORT": "9090",
        "PAGEFLEET_ENDPOINT_DELAY": "20",
        "KUBECONFIG": "/from/env",
    }
    settings = read_settings(env, namespaces=("c",), http_port=0)
    assert settings.render.engine_image == "registry.example/engine@sha256:1"
    assert settings.render.engine_pull_secrets == ("one", "two")
    assert (settings.render.operator_namespace, settings.identity) == ("system", "operator-1")
    assert (settings.namespaces, settings.http_port) == (("c",), 0)
    assert settings.render.endpoint_delay_s == 20
    assert settings.kubeconfig == "/from/env"
    assert read_settings({**env, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}).kubeconfig is None
    assert read_settings(env).namespaces == ("a", "b")


def test_models_are_looked_up_where_the_environment_says_or_nowhere() -> None:
    assert read_settings({}).hub == Hub("https://huggingface.co")
    env = {"PAGEFLEET_HUB_ENDPOINT": "https://hub.example/", "PAGEFLEET_HUB_PROXY": "http://proxy.example:3128"}
    assert read_settings(env).hub == Hub("https://hub.example", "http://proxy.example:3128")
    assert read_settings({**env, "PAGEFLEET_HUB": "off"}).hub is None


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"PAGEFLEET_HTTP_PORT": "http"}, "PAGEFLEET_HTTP_PORT is 'http', .*write for example 8080"),
        ({"PAGEFLEET_HTTP_PORT": "70000"}, "the HTTP port is 70000, .*write 0 to 65535"),
        ({"PAGEFLEET_HUB": "maybe"}, "PAGEFLEET_HUB is 'maybe'; write one of on, off"),
        ({"PAGEFLEET_HUB_ENDPOINT": "hub"}, "PAGEFLEET_HUB_ENDPOINT is 'hub', .*https://huggingface.co"),
        ({"PAGEFLEET_HUB_PROXY": "proxy:1"}, "PAGEFLEET_HUB_PROXY is 'proxy:1', .*http://proxy.example:3128"),
        ({"PAGEFLEET_LOG_LEVEL": "loud"}, "PAGEFLEET_LOG_LEVEL is 'loud'; write one of INFO"),
        ({"PAGEFLEET_ENGINE_PULL_POLICY": "Sometimes"}, "write one of IfNotPresent, Always, Never"),
    ],
)
def test_a_mistake_is_told_with_a_value_that_works(env: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        read_settings(env)
