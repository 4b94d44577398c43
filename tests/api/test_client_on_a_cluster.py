"""The client against a real API server: what each answer becomes."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from pagefleet.api.client import ApiError, Conflict, Invalid, KubernetesClient, NotFound
from pagefleet.api.resources import (
    INFERENCE_POOLS,
    INFERENCE_SERVICES,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    REPLICA_SETS,
    SERVICE_MONITORS,
    SERVICES,
    Resource,
)
from tests.cluster.cluster import Cluster

MANAGER = "test"


def service(namespace: str, *, name: str = "chat", port: int = 80, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"clusterIP": "None", "ports": [{"port": port, "name": "http"}]},
    }


def inference_service(namespace: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "chat", "namespace": namespace}, "spec": {"model": {"uri": "hf://a/b"}, **spec}}


def lease(namespace: str, holder: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "x", "namespace": namespace, **metadata}, "spec": {"holderIdentity": holder}}


@pytest.fixture
async def namespace(crd_cluster: Cluster, client: KubernetesClient) -> AsyncIterator[str]:
    with crd_cluster.namespace("client", wait=False) as name:
        yield name


async def test_what_does_not_exist(client: KubernetesClient, namespace: str) -> None:
    assert await client.get(PODS, namespace, "none") is None
    assert await client.get(PODS, "no-such-namespace", "none") is None
    assert await client.get(NODES, None, "none") is None
    assert await client.get(SERVICE_MONITORS, namespace, "no-such-kind") is None
    assert await client.delete(PODS, namespace, "none") is False
    assert await client.logs(namespace, "none") is None
    with pytest.raises(NotFound):
        await client.list(SERVICE_MONITORS)
    with pytest.raises(NotFound, match="no-such-namespace"):
        await client.apply(SERVICES, service("no-such-namespace"), MANAGER)


@pytest.mark.parametrize(
    ("resource", "expected"),
    [(INFERENCE_SERVICES, True), (PODS, True), (LEASES, True), (SERVICE_MONITORS, False), (INFERENCE_POOLS, False)],
)
async def test_kinds_that_a_cluster_has(client: KubernetesClient, resource: Resource, expected: bool) -> None:
    assert await client.serves(resource) is expected


async def test_apply_creates_changes_and_leaves_alone(client: KubernetesClient, namespace: str) -> None:
    created = await client.apply(SERVICES, service(namespace, labels={"a": "b"}), MANAGER)
    again = await client.apply(SERVICES, service(namespace, labels={"a": "b"}), MANAGER)
    assert again["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
    await client.patch_merge(SERVICES, namespace, "chat", {"metadata": {"annotations": {"theirs": "x"}}})
    changed = await client.apply(SERVICES, service(namespace, port=81), MANAGER)
    assert changed["spec"]["ports"][0]["port"] == 81
    assert "labels" not in changed["metadata"]
    assert changed["metadata"]["annotations"] == {"theirs": "x"}


async def test_a_field_of_another_manager(client: KubernetesClient, namespace: str) -> None:
    await client.apply(INFERENCE_SERVICES, inference_service(namespace, replicas=1), "one")
    body = inference_service(namespace, replicas=2)
    with pytest.raises(Conflict, match=r'conflict with "one".*: \.spec\.replicas'):
        await client.apply(INFERENCE_SERVICES, body, "two", force=False)
    assert (await client.apply(INFERENCE_SERVICES, body, "two"))["spec"]["replicas"] == 2


async def test_an_identity_that_is_gone(client: KubernetesClient, namespace: str) -> None:
    """A write bound to a uid neither lands on a namesake nor creates the object again."""
    first = await client.create(SERVICES, service(namespace))
    uid = first["metadata"]["uid"]
    with pytest.raises(Conflict):
        await client.create(SERVICES, service(namespace))
    assert await client.delete(SERVICES, namespace, "chat", uid=uid) is True
    with pytest.raises(Conflict):
        await client.apply(SERVICES, service(namespace, uid=uid), MANAGER)
    assert await client.get(SERVICES, namespace, "chat") is None
    second = await client.create(SERVICES, service(namespace))
    with pytest.raises(Conflict):
        await client.delete(SERVICES, namespace, "chat", uid=uid)
    with pytest.raises((Conflict, Invalid)):
        await client.apply(SERVICES, service(namespace, uid=uid), MANAGER)
    found = await client.get(SERVICES, namespace, "chat")
    assert found is not None
    assert found["metadata"]["uid"] == second["metadata"]["uid"]


async def test_bodies_that_break_the_schema(client: KubernetesClient, namespace: str) -> None:
    began = time.monotonic()
    with pytest.raises(Invalid, match=r"\.spec\.engin: field not declared in schema") as unknown:
        await client.apply(INFERENCE_SERVICES, inference_service(namespace, engin={}), MANAGER)
    assert unknown.value.status == 500
    assert time.monotonic() - began < 3.0, "it was sent again"
    with pytest.raises(Invalid, match=r"\.spec\.replicas: expected numeric"):
        await client.apply(INFERENCE_SERVICES, inference_service(namespace, replicas="two"), MANAGER)
    with pytest.raises(Invalid, match="should be greater than or equal to 0") as bound:
        await client.apply(INFERENCE_SERVICES, inference_service(namespace, replicas=-1), MANAGER)
    assert bound.value.status == 422
    with pytest.raises(Invalid, match="count is 2, but no resource is named"):
        await client.create(INFERENCE_SERVICES, inference_service(namespace, accelerator={"count": 2}))
    assert await client.get(INFERENCE_SERVICES, namespace, "chat") is None


async def test_a_merge_patch(client: KubernetesClient, namespace: str) -> None:
    created = await client.create(INFERENCE_SERVICES, inference_service(namespace))
    patch = {"metadata": {"resourceVersion": created["metadata"]["resourceVersion"]}, "spec": {"replicas": 2}}
    scale = await client.patch_merge(INFERENCE_SERVICES, namespace, "chat", patch, subresource="scale")
    assert (scale["kind"], scale["spec"]["replicas"]) == ("Scale", 2)
    with pytest.raises(Conflict):
        await client.patch_merge(INFERENCE_SERVICES, namespace, "chat", patch, subresource="scale")
    with pytest.raises(NotFound):
        await client.patch_merge(INFERENCE_SERVICES, namespace, "none", {}, subresource="scale")
    with pytest.raises(ApiError, match=r'unknown field "spec\.replica"'):
        await client.patch_merge(INFERENCE_SERVICES, namespace, "chat", {"spec": {"replica": 2}})


async def test_status_is_written_apart(client: KubernetesClient, namespace: str) -> None:
    created = await client.create(INFERENCE_SERVICES, inference_service(namespace))
    metadata = {"name": "chat", "namespace": namespace, "uid": created["metadata"]["uid"]}
    status = {"observedGeneration": 1, "phase": "Pending"}
    body = {"metadata": metadata, "status": status}
    written = await client.apply(INFERENCE_SERVICES, body, MANAGER, subresource="status")
    assert written["status"] == status
    assert written["metadata"]["generation"] == 1
    again = await client.apply(INFERENCE_SERVICES, body, MANAGER, subresource="status")
    assert again["metadata"]["resourceVersion"] == written["metadata"]["resourceVersion"]
    newer = {"metadata": metadata, "status": {**status, "fieldOfTomorrow": 1}}
    with pytest.raises(Invalid, match=r"\.status\.fieldOfTomorrow: field not declared in schema"):
        await client.apply(INFERENCE_SERVICES, newer, MANAGER, subresource="status")
    await client.delete(INFERENCE_SERVICES, namespace, "chat")
    with pytest.raises(NotFound):
        await client.apply(INFERENCE_SERVICES, body, MANAGER, subresource="status")


async def test_a_lease_has_one_winner(client: KubernetesClient, namespace: str) -> None:
    created = await client.create(LEASES, lease(namespace, "a"))
    version = created["metadata"]["resourceVersion"]
    racers = [client.replace(LEASES, lease(namespace, name, resourceVersion=version)) for name in "bcdef"]
    ends = await asyncio.gather(*racers, return_exceptions=True)
    assert sorted(type(end).__name__ for end in ends) == ["Conflict"] * 4 + ["dict"]


async def test_a_list_in_chunks(client: KubernetesClient, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagefleet.api.client.LIST_CHUNK", 3)
    labels = {"test": namespace}
    await asyncio.gather(
        *(client.apply(SERVICES, service(namespace, name=f"s{index}", labels=labels), MANAGER) for index in range(7))
    )
    found = await client.list(SERVICES, label_selector=f"test={namespace}")
    assert [item["metadata"]["name"] for item in found.items] == [f"s{index}" for index in range(7)]
    assert {(item["apiVersion"], item["kind"]) for item in found.items} == {("v1", "Service")}
    assert int(found.resource_version) > 0
    one = await client.list(SERVICES, namespace, field_selector="metadata.name=s3")
    assert [item["metadata"]["name"] for item in one.items] == ["s3"]
    assert (await client.list(REPLICA_SETS, namespace)).items == ()
    assert any(item["metadata"]["name"] == namespace for item in (await client.list(NAMESPACES)).items)


async def test_a_container_that_has_not_started_has_no_log(client: KubernetesClient, namespace: str) -> None:
    spec = {"containers": [{"name": "c", "image": "x"}], "nodeSelector": {"no-such": "node"}}
    pod = {"metadata": {"name": "p", "namespace": namespace}, "spec": spec}
    await client.create(PODS, pod)
    assert not await client.logs(namespace, "p")
    assert not await client.logs(namespace, "p", container="c", previous=True)
    assert await client.logs(namespace, "p", container="no-such-container") is None


async def test_an_account_without_rights(client: KubernetesClient, crd_cluster: Cluster, namespace: str) -> None:
    token = crd_cluster.kubectl("create", "token", "default", "-n", namespace).stdout.strip()
    config = crd_cluster.kubectl("config", "view", "--raw", "--minify").stdout
    loaded = yaml.safe_load(config)
    loaded["users"][0]["user"] = {"token": token}
    path = crd_cluster.kubeconfig.parent / f"{namespace}.kubeconfig"
    path.write_text(yaml.safe_dump(loaded))
    try:
        async with await KubernetesClient.connect(str(path), "test") as stranger:
            with pytest.raises(ApiError, match="pods is forbidden") as refused:
                await stranger.list(PODS)
            assert (refused.value.status, refused.value.reason) == (403, "Forbidden")
            assert await stranger.serves(INFERENCE_SERVICES)
    finally:
        path.unlink()


async def test_a_watch_goes_on_from_a_list(client: KubernetesClient, namespace: str) -> None:
    before = await client.list(LEASES, namespace)
    await client.create(LEASES, lease(namespace, "one"))
    await client.delete(LEASES, namespace, "x")
    seen = []
    async with asyncio.timeout(30):
        async for event in client.watch(LEASES, namespace, resource_version=before.resource_version):
            seen.append((event.kind, event.item["metadata"]["name"]))
            if event.kind == "DELETED":
                break
    assert seen == [("ADDED", "x"), ("DELETED", "x")]
