"""The chart without a cluster: what it renders, what it refuses, and that it says what to do next."""

import json
import os
from pathlib import Path

import pytest
import yaml

from pagefleet.api.crd import CRD_NAME, crd_manifest, crd_yaml
from pagefleet.cli.dashboards.boards import BOARDS
from pagefleet.cli.dashboards.grafana import dashboard_json
from tests.helm.chart import CHART, KUBE_VERSION, VALUE_SETS, VALUES, helm, objects, of_kind, render, without_files

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("values", VALUE_SETS)
def test_lint_finds_nothing(values: str) -> None:
    helm("lint", "--strict", "--quiet", str(CHART), f"--values={VALUES / values}.yaml")


@pytest.mark.parametrize("values", VALUE_SETS)
def test_renders_as_reviewed(values: str) -> None:
    """Write the goldens anew with PAGEFLEET_UPDATE_GOLDENS=1, and review the difference."""
    rendered = without_files(render(values))
    golden = GOLDEN / f"{values}.yaml"
    if os.environ.get("PAGEFLEET_UPDATE_GOLDENS"):
        golden.write_text(rendered)
    assert rendered == golden.read_text()


def test_the_crd_is_the_one_of_the_types() -> None:
    (crd,) = of_kind(objects(render("cluster-wide")), "CustomResourceDefinition")
    assert crd["metadata"]["annotations"].pop("helm.sh/resource-policy") == "keep"
    assert crd["metadata"].pop("labels")["app.kubernetes.io/part-of"] == "pagefleet"
    assert crd == crd_manifest()
    copy = CHART / "files" / f"{CRD_NAME}.yaml"
    assert copy.read_text() == crd_yaml(), f"run pagefleet crds > {copy.relative_to(CHART.parents[1])}"


def test_the_dashboards_are_the_described_ones() -> None:
    config_maps = of_kind(objects(render("cluster-wide")), "ConfigMap")
    (shown,) = [each for each in config_maps if "grafana_dashboard" in each["metadata"]["labels"]]
    assert shown["metadata"]["annotations"] == {"grafana_folder": "pagefleet"}
    assert shown["data"] == {f"pagefleet-{name}.json": dashboard_json(board) for name, board in BOARDS.items()}


def test_the_alerts_are_the_files_with_links_to_their_runbooks() -> None:
    (shown,) = of_kind(objects(render("everything")), "PrometheusRule")
    assert shown["metadata"]["labels"]["release"] == "monitoring"
    expected = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    for group in expected["groups"]:
        for rule in group["rules"]:
            rule["annotations"]["runbook"] = f"pagefleet runbook {rule['alert']}"
            rule["annotations"]["runbook_url"] = f"https://runbooks.example/pagefleet/{rule['alert']}.md"
    assert shown["spec"] == expected
    assert not of_kind(objects(render("cluster-wide")), "PrometheusRule")


def test_alerts_have_no_link_that_nobody_gave() -> None:
    (shown,) = of_kind(objects(render("cluster-wide", "--set", "alerts.enabled=true")), "PrometheusRule")
    annotations = [rule["annotations"] for group in shown["spec"]["groups"] for rule in group["rules"]]
    assert annotations
    assert all("runbook" in each and "runbook_url" not in each for each in annotations)


@pytest.mark.parametrize("values", VALUE_SETS)
def test_one_object_per_template(values: str) -> None:
    sources = [line for line in render(values).splitlines() if line.startswith("# Source: ")]
    assert len(sources) == len({*sources})


def test_everything_sets_every_value() -> None:
    """Each leaf of values.yaml is set to something else in values/everything.yaml, but for what others cover."""

    def leaves(value: object, path: str = "") -> dict[str, object]:
        if not isinstance(value, dict) or not value:
            return {path: value}
        return {name: leaf for key, inner in value.items() for name, leaf in leaves(inner, f"{path}.{key}").items()}

    default = leaves(yaml.safe_load((CHART / "values.yaml").read_text()))
    everything = leaves(yaml.safe_load((VALUES / "everything.yaml").read_text()))
    namespaced = leaves(yaml.safe_load((VALUES / "namespaced.yaml").read_text()))
    touched = {*everything, *namespaced}
    untouched = {name for name in default if not any(path == name or path.startswith(f"{name}.") for path in touched)}
    assert untouched == {".networkPolicy.enabled"}


REFUSED = [
    ({"operater": {}}, "operater"),
    ({"operator": {"replica": 2}}, "replica"),
    ({"operator": {"replicas": "two"}}, "/operator/replicas"),
    ({"operator": {"image": {"digest": "sha256:abc"}}}, "/operator/image/digest"),
    ({"operator": {"image": {"pullPolicy": "Sometimes"}}}, "/operator/image/pullPolicy"),
    ({"operator": {"env": {"PATH": "/"}}}, "PATH"),
    ({"operator": {"logLevel": "chatty"}}, "/operator/logLevel"),
    ({"autoscaler": {"image": {}}}, "image"),
    ({"autoscaler": {"decisionLog": "some"}}, "/autoscaler/decisionLog"),
    ({"engine": {"image": {"pullPolicy": "Sometimes"}}}, "/engine/image/pullPolicy"),
    ({"engine": {"resources": {}}}, "resources"),
    ({"crds": {"keep": False}}, "keep"),
    ({"metrics": {"enabled": True}}, "enabled"),
    ({"dashboards": {"folders": []}}, "folders"),
    ({"alerts": {"runbooks": "docs"}}, "/alerts/runbooks"),
    ({"networkPolicy": {"from": []}}, "from"),
    ({"imagePullSecrets": ["registry"]}, "/imagePullSecrets/0"),
    ({"namespaced": "yes"}, "/namespaced"),
]


@pytest.mark.parametrize(("values", "named"), REFUSED, ids=[json.dumps(values) for values, _ in REFUSED])
def test_a_wrong_value_is_refused_by_name(values: dict[str, object], named: str) -> None:
    refusal = helm("template", "fleet", str(CHART), KUBE_VERSION, "--values=-", check=False, stdin=json.dumps(values))
    assert refusal.returncode != 0
    assert named in refusal.stderr


def test_every_object_in_the_schema_is_closed() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def open_objects(node: object, path: str) -> list[str]:
        if not isinstance(node, dict):
            return []
        found = [path] if "properties" in node and node.get("additionalProperties") is not False else []
        return found + [name for key, inner in node.items() for name in open_objects(inner, f"{path}/{key}")]

    assert open_objects({key: value for key, value in schema.items() if key != "definitions"}, "") == []


def test_a_namespaced_release_has_no_right_beyond_its_namespace() -> None:
    kinds = {document["kind"] for document in objects(render("namespaced"))}
    assert not {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"} & kinds
    assert {"Role", "RoleBinding"} <= kinds


@pytest.mark.parametrize("values", VALUE_SETS)
def test_no_rule_holds_a_wildcard(values: str) -> None:
    roles = [document for document in objects(render(values)) if document["kind"] in ("Role", "ClusterRole")]
    rules = [rule for role in roles for rule in role["rules"]]
    assert rules
    assert not [rule for rule in rules if "*" in rule["apiGroups"] + rule["resources"] + rule["verbs"]]


def test_without_the_autoscaler_nothing_of_it_is_left() -> None:
    rendered = render("cluster-wide", "--set=autoscaler.enabled=false")
    named = [document["metadata"]["name"] for document in objects(rendered)]
    assert named
    assert not [name for name in named if "autoscaler" in name]


def test_the_autoscaler_cannot_touch_what_the_operator_writes() -> None:
    for values in ("cluster-wide", "namespaced"):
        roles = [
            document
            for document in objects(render(values))
            if document["kind"] in ("Role", "ClusterRole") and document["metadata"]["name"].endswith("-autoscaler")
        ]
        writes = {
            (resource, verb)
            for role in roles
            for rule in role["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            if verb not in ("get", "list", "watch")
        }
        assert writes == {
            ("inferenceservices/scale", "patch"),
            ("inferenceservices/status", "patch"),
            ("events", "create"),
            ("leases", "create"),
            ("leases", "update"),
        }
