"""`pagefleet.operator.plan.template_patch`: Kubernetes' strategic-merge rules, case by case."""

from typing import Any

import pytest

from pagefleet.operator.plan.template_patch import TemplatePatchError, patch_template

ENGINE: dict[str, Any] = {
    "name": "engine",
    "image": "engine:1",
    "args": ["serve"],
    "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
    "ports": [{"containerPort": 8000, "name": "http"}],
    "volumeMounts": [{"mountPath": "/cache", "name": "cache"}],
}
TEMPLATE: dict[str, Any] = {
    "spec": {
        "containers": [ENGINE],
        "volumes": [{"name": "cache", "emptyDir": {}}],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "securityContext": {"runAsUser": 1},
    }
}


def engine(**patch: Any) -> dict[str, Any]:
    return {"containers": [{"name": "engine", **patch}]}


@pytest.mark.parametrize(
    ("patch", "path", "expected"),
    [
        ({"nodeSelector": {"zone": "a"}}, ["nodeSelector"], {"zone": "a"}),
        ({"securityContext": {"fsGroup": 2}}, ["securityContext"], {"runAsUser": 1, "fsGroup": 2}),
        ({"securityContext": {"runAsUser": None}}, ["securityContext"], {}),
        ({"securityContext": {"$patch": "replace", "fsGroup": 2}}, ["securityContext"], {"fsGroup": 2}),
        ({"tolerations": [{"operator": "Exists"}]}, ["tolerations"], [{"operator": "Exists"}]),
        (engine(args=["other"]), ["containers", 0, "args"], ["other"]),
        (engine(env=[{"name": "A", "value": "2"}]), ["containers", 0, "env", 0], {"name": "A", "value": "2"}),
        (engine(env=[{"name": "B", "value": "2"}]), ["containers", 0, "env", 1], {"name": "B", "value": "2"}),
        (engine(env=[{"name": "C", "value": "3"}]), ["containers", 0, "env", 2], {"name": "C", "value": "3"}),
        (engine(env=[{"name": "A", "$patch": "delete"}]), ["containers", 0, "env"], [ENGINE["env"][1]]),
        (
            engine(ports=[{"containerPort": 8000, "hostPort": 80}]),
            ["containers", 0, "ports"],
            [{"containerPort": 8000, "name": "http", "hostPort": 80}],
        ),
        (
            engine(volumeMounts=[{"mountPath": "/data", "name": "data"}]),
            ["containers", 0, "volumeMounts", 1],
            {"mountPath": "/data", "name": "data"},
        ),
        (
            {"volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "c"}}]},
            ["volumes"],
            [{"name": "cache", "persistentVolumeClaim": {"claimName": "c"}}],
        ),
        (
            {"volumes": [{"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}}]},
            ["volumes", 0, "emptyDir"],
            {"sizeLimit": "1Gi"},
        ),
        ({"containers": [{"name": "sidecar", "image": "s"}]}, ["containers", 1], {"name": "sidecar", "image": "s"}),
        (
            {"containers": [{"$patch": "replace"}, {"name": "only", "image": "o"}]},
            ["containers"],
            [{"name": "only", "image": "o"}],
        ),
    ],
)
def test_a_patch_merges_as_kubernetes_merges(patch: dict[str, Any], path: list[str | int], expected: Any) -> None:
    found: Any = patch_template(TEMPLATE, {"spec": patch})["spec"]
    for step in path:
        found = found[step]
    assert found == expected


def test_nothing_else_changes() -> None:
    before = patch_template(TEMPLATE, {})
    patched = patch_template(TEMPLATE, {"spec": engine(env=[{"name": "A", "value": "2"}])})
    assert before == TEMPLATE
    assert patched["spec"]["volumes"] == TEMPLATE["spec"]["volumes"]
    assert {**patched["spec"]["containers"][0], "env": None} == {**ENGINE, "env": None}


@pytest.mark.parametrize(
    ("patch", "sentence"),
    [
        (
            {"spec": {"containers": [{"image": "x"}]}},
            r"spec.template.spec.containers\[0\] has no name, .*write name: …",
        ),
        ({"spec": {"containers": ["engine"]}}, r"spec.template.spec.containers\[0\] has no name"),
        ({"spec": {"$patch": "merge"}}, r"spec.template.spec.\$patch is 'merge', .*write \$patch: replace"),
    ],
)
def test_what_cannot_be_merged_is_refused_with_what_to_write(patch: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TemplatePatchError, match=sentence):
        patch_template(TEMPLATE, patch)
