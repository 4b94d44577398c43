"""`pagefleet.operator.records`: pods and ReplicaSets as kubelets, schedulers and controllers write them."""

from typing import Any

import pytest

from pagefleet.capacity import ACCELERATORS, PRODUCTS
from pagefleet.operator.nodes import count_accelerators
from pagefleet.operator.plan.observed import Accelerators, Ended
from pagefleet.operator.records import read_pod, read_replica_set

METADATA = {
    "name": "chat-1-x",
    "namespace": "team",
    "uid": "u",
    "creationTimestamp": "2026-01-01T00:00:00Z",
    "labels": {"serving.pagefleet.io/revision": "1"},
    "generation": 2,
}


def pod(containers: list[dict[str, Any]], **status: Any) -> dict[str, Any]:
    return {"metadata": METADATA, "spec": {"nodeName": "n"}, "status": {"containerStatuses": containers, **status}}


def engine(state: dict[str, Any], last: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"name": "engine", "state": state, "lastState": last or {}, "restartCount": 0, **fields}


TERMINATED = {"terminated": {"exitCode": 2, "reason": "Error", "message": "no such model"}}


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (pod([engine({"running": {}})], phase="Running", podIP="10.0.0.1"), {"is_running": True, "ip": "10.0.0.1"}),
        (pod([], conditions=[{"type": "Ready", "status": "True"}]), {"is_ready": True}),
        (
            pod(
                [], conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m"}]
            ),
            {"unschedulable": "m"},
        ),
        (
            pod([engine({"waiting": {"reason": "ImagePullBackOff", "message": "back-off"}})]),
            {"waiting_reason": "ImagePullBackOff", "waiting_message": "back-off"},
        ),
        (pod([engine({"waiting": {"reason": "ContainerCreating"}})]), {"waiting_reason": None, "ended": None}),
        (
            pod([engine({"waiting": {"reason": "CrashLoopBackOff"}}, TERMINATED, restartCount=4)]),
            {"waiting_reason": None, "ended": Ended(2, "Error", "no such model"), "restarts": 4},
        ),
        (pod([engine({"running": {}}, TERMINATED, ready=True)]), {"ended": None}),
        (
            pod([], phase="Failed", reason="Evicted", message="low on memory"),
            {"ended": Ended(-1, "Evicted", "low on memory")},
        ),
    ],
)
def test_a_pod_is_read(item: dict[str, Any], expected: dict[str, Any]) -> None:
    record = read_pod(item)
    assert {name: getattr(record, name) for name in expected} == expected


def test_a_replica_set_has_settled_once_its_controller_saw_the_newest_spec() -> None:
    item = {"metadata": METADATA, "spec": {"replicas": 3}, "status": {"replicas": 2, "observedGeneration": 1}}
    assert not read_replica_set(item).has_settled
    item["status"] = {
        "replicas": 2,
        "observedGeneration": 2,
        "conditions": [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}],
    }
    record = read_replica_set(item)
    assert (record.has_settled, record.observed_replicas, record.ready_replicas) == (True, 2, 0)
    assert record.failure == "exceeded quota"


def test_accelerators_are_counted_with_the_memory_of_the_smallest() -> None:
    def node(count: str, memory: str | None, **spec: Any) -> dict[str, Any]:
        labels = {} if memory is None else {"nvidia.com/gpu.memory": memory}
        return {
            "metadata": {"labels": labels},
            "spec": spec,
            "status": {"allocatable": {"nvidia.com/gpu": count, "cpu": "4"}},
        }

    nodes = [node("8", "81920"), node("4", "24576"), node("2", None, unschedulable=True), node("0", "1")]
    assert count_accelerators(nodes) == {"nvidia.com/gpu": Accelerators(12, 24576 * 2**20)}


@pytest.mark.parametrize(
    ("products", "expected"),
    [
        (["NVIDIA-L4", "NVIDIA-L4"], "NVIDIA-L4"),
        (["NVIDIA-L4", "NVIDIA-H200"], None),
        (["NVIDIA-L4", ""], None),
        (["", ""], None),
    ],
)
def test_a_product_is_told_where_all_nodes_have_the_same(products: list[str], expected: str | None) -> None:
    nodes = [
        {
            "metadata": {"labels": {"nvidia.com/gpu.product": product} if product else {}},
            "status": {"allocatable": {"nvidia.com/gpu": "1"}},
        }
        for product in products
    ]
    assert count_accelerators(nodes)["nvidia.com/gpu"].product == expected


def test_every_product_is_in_the_table() -> None:
    assert set(PRODUCTS.values()) <= set(ACCELERATORS)
