import pytest

from pagefleet.api import resources
from pagefleet.api.resources import INFERENCE_SERVICES, LEASES, NODES, PODS, Resource


@pytest.mark.parametrize(
    ("resource", "namespace", "name", "subresource", "path"),
    [
        (PODS, None, None, None, "/api/v1/pods"),
        (PODS, "team", None, None, "/api/v1/namespaces/team/pods"),
        (PODS, "team", "chat-0", "log", "/api/v1/namespaces/team/pods/chat-0/log"),
        (NODES, None, "gpu-1", None, "/api/v1/nodes/gpu-1"),
        (NODES, "ignored", None, None, "/api/v1/nodes"),
        (LEASES, "team", "x", None, "/apis/coordination.k8s.io/v1/namespaces/team/leases/x"),
        (
            INFERENCE_SERVICES,
            "team",
            "chat",
            "status",
            "/apis/serving.pagefleet.io/v1alpha1/namespaces/team/inferenceservices/chat/status",
        ),
        (PODS, "team", "../../secrets", None, "/api/v1/namespaces/team/pods/..%2F..%2Fsecrets"),
    ],
)
def test_paths(resource: Resource, namespace: str | None, name: str | None, subresource: str | None, path: str) -> None:
    assert resource.path(namespace, name, subresource) == path


def test_an_object_needs_its_namespace() -> None:
    with pytest.raises(ValueError, match="Pod chat-0 needs a namespace"):
        PODS.path(None, "chat-0")


def test_names_of_an_added_kind() -> None:
    assert INFERENCE_SERVICES.api_version == "serving.pagefleet.io/v1alpha1"
    assert INFERENCE_SERVICES.crd_name == "inferenceservices.serving.pagefleet.io"
    assert PODS.api_version == "v1"


def test_no_kind_is_listed_twice() -> None:
    listed = [value for value in vars(resources).values() if isinstance(value, Resource)]
    assert len(listed) == len({(resource.group, resource.plural) for resource in listed}) == 15
