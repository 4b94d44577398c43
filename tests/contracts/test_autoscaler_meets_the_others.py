"""What the autoscaler knows of operator and engine without importing them."""

from pagefleet.api.labels import NAME_LABEL, PROJECT
from pagefleet.autoscaler.scrape import ADMIN_PORT
from pagefleet.autoscaler.settings import Settings
from pagefleet.operator.plan.network_policy import render_network_policy
from pagefleet.operator.plan.settings import ADMIN_PORT as OPERATORS_PORT
from tests.helm.chart import NAMESPACE, objects, of_kind, render
from tests.operator.builders import SETTINGS, service


def test_the_port_that_is_asked_is_the_one_of_the_pods() -> None:
    assert ADMIN_PORT == OPERATORS_PORT


def test_two_rounds_of_reports_fit_into_the_age_of_a_fresh_one() -> None:
    from pagefleet.autoscaler.process_settings import ProcessSettings

    process = ProcessSettings()
    assert 2 * process.tick_s + process.scrape_timeout_s <= Settings(speed=None).stale_after_s


def test_engines_let_the_autoscaler_of_the_chart_in() -> None:
    (deployment,) = (one for one in of_kind(objects(render("cluster-wide")), "Deployment") if "autoscaler" in str(one))
    policy = render_network_policy(service(), SETTINGS)
    admin = next(
        rule for rule in policy.body["spec"]["ingress"] if [port["port"] for port in rule["ports"]] == [ADMIN_PORT]
    )
    (peer,) = admin["from"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"] == {NAME_LABEL: PROJECT}
    assert labels[NAME_LABEL] == PROJECT
    assert deployment["metadata"]["namespace"] == NAMESPACE
