"""`pagefleet.operator.plan.ownership`: managed fields as an API server writes them, before and after edits."""

from typing import Any

import pytest

from pagefleet.operator.plan.ownership import owned_fields, owns_all

BODY: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "chat", "namespace": "team", "labels": {"a": "1"}, "ownerReferences": [{"uid": "u"}]},
    "spec": {"selector": {"x": "y"}, "ports": [{"name": "http", "port": 8000}], "type": "ClusterIP"},
}
FIELDS: dict[str, Any] = {
    "f:metadata": {"f:labels": {"f:a": {}}, "f:ownerReferences": {'k:{"uid":"u"}': {}}},
    "f:spec": {
        "f:selector": {},
        "f:ports": {'k:{"port":8000,"protocol":"TCP"}': {".": {}, "f:name": {}, "f:port": {}}},
        "f:type": {},
    },
}


def metadata(fields: dict[str, Any]) -> dict[str, Any]:
    mine = {"manager": "pagefleet-operator", "operation": "Apply", "fieldsV1": fields}
    other = {"manager": "kubectl-edit", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": {"f:b": {}}}}}
    status = {**mine, "subresource": "status", "fieldsV1": {}}
    return {"managedFields": [other, status, mine]}


def without(*path: str) -> dict[str, Any]:
    """Return the fields without one; a parent that is left empty goes with it, as on a server."""

    def copy(value: Any, rest: tuple[str, ...]) -> Any:
        inner = copy(value[rest[0]], rest[1:]) if len(rest) > 1 else {}
        return {key: inner if key == rest[0] else part for key, part in value.items() if key != rest[0] or inner}

    found: dict[str, Any] = copy(FIELDS, path)
    return found


def test_an_object_as_it_was_applied_is_wholly_ours() -> None:
    assert owns_all(owned_fields(metadata(FIELDS)), BODY)


@pytest.mark.parametrize(
    "path",
    [
        ("f:spec", "f:type"),
        ("f:spec", "f:selector"),
        ("f:metadata", "f:labels", "f:a"),
        ("f:spec", "f:ports", 'k:{"port":8000,"protocol":"TCP"}'),
        ("f:spec", "f:ports", 'k:{"port":8000,"protocol":"TCP"}', "f:name"),
        ("f:spec",),
    ],
)
def test_a_field_that_somebody_took_is_noticed(path: tuple[str, ...]) -> None:
    assert not owns_all(owned_fields(metadata(without(*path))), BODY)


def test_an_object_that_we_never_applied_is_not_ours() -> None:
    assert not owns_all(owned_fields({"managedFields": []}), BODY)
    assert not owns_all(owned_fields({}), BODY)
