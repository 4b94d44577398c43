"""`pagefleet.autoscaler.store` and `records`: what is known of services and pods, whatever order it comes in."""

from datetime import UTC, datetime

import pytest

from pagefleet.autoscaler.records import ServiceKey, read_pod, read_service
from pagefleet.autoscaler.snapshot import Replica, ReplicaPhase
from pagefleet.autoscaler.store import Store
from tests.autoscaler.cluster_objects import pod_object, service_object

KEY = ServiceKey("team", "chat")
CREATED_S = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
NOW_S = CREATED_S + 1000.0


def replica(store: Store) -> Replica:
    (pod,) = store.pods(KEY)
    return store.replica(pod, NOW_S)


def test_the_newest_version_counts_whatever_comes_last() -> None:
    store = Store()
    store.put_service(service_object(replicas=3, version=10))
    store.put_service(service_object(replicas=2, version=9))
    assert [one.service.spec.replicas for one in store.services()] == [3]
    store.put_replicas("uid-1", 5, "11")
    store.put_service(service_object(replicas=3, version=10))
    (record,) = store.services()
    assert (record.service.spec.replicas, record.version, record.generation) == (5, "11", 11)
    assert record.replicas_writer is not None
    assert record.replicas_writer.is_autoscaler


def test_a_service_that_is_deleted_or_missing_from_a_list_is_no_more() -> None:
    store = Store()
    for name in ("a", "b", "c"):
        store.put_service(service_object(name, uid=name))
    store.put_service(service_object("c", uid="c", version=2, deletionTimestamp="2026-01-01T00:00:00Z"))
    assert [one.uid for one in store.services()] == ["a", "b"]
    store.drop_service(service_object("a", uid="a"))
    store.keep_services("elsewhere", set())
    assert [one.uid for one in store.services()] == ["b"]
    store.keep_services(None, set())
    assert store.services() == []


def test_a_service_of_a_newer_version_is_not_scaled_and_named(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    store.put_service(service_object())
    store.put_service(service_object(version=2, autoscaling={"mode": "Dream"}))
    store.put_service(service_object(version=3, autoscaling={"mode": "Dream"}))
    assert store.services() == []
    assert [record.levelname for record in caplog.records] == ["ERROR"], "said once"
    assert "team/chat is not scaled" in caplog.text


def test_who_wrote_the_replicas() -> None:
    record = read_service(service_object(writer="argocd", written="2026-02-03T04:05:06Z"))
    assert record.replicas_writer is not None
    assert (record.replicas_writer.manager, record.replicas_writer.is_autoscaler) == ("argocd", False)
    assert record.replicas_writer.time == datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert read_service(service_object(writer=None)).replicas_writer is None


@pytest.mark.parametrize(
    ("pod", "phase"),
    [
        (pod_object(), ReplicaPhase.READY),
        (pod_object(is_ready=False), ReplicaPhase.PENDING),
        (pod_object(metadata={"deletionTimestamp": "2026-01-01T00:10:00Z"}), ReplicaPhase.DRAINING),
        (pod_object(labels={"serving.pagefleet.io/traffic": "off"}), ReplicaPhase.DRAINING),
    ],
)
def test_the_phase_of_a_pod(pod: dict[str, object], phase: ReplicaPhase) -> None:
    store = Store()
    store.put_pod(pod)
    assert replica(store).phase is phase


def test_a_pod_for_which_no_node_has_room() -> None:
    def is_unschedulable(**scheduled: str) -> bool:
        pod = pod_object(is_ready=False)
        pod["status"]["conditions"].append({"type": "PodScheduled", **scheduled})
        record = read_pod(pod)
        assert record is not None
        return record.is_unschedulable

    assert is_unschedulable(status="False", reason="Unschedulable")
    assert not is_unschedulable(status="False", reason="SchedulingGated")
    assert not is_unschedulable(status="True")


def test_pods_that_are_over_or_belong_to_nobody_are_no_replicas() -> None:
    store = Store()
    store.put_pod(pod_object("a"))
    store.put_pod(pod_object("a", phase="Failed"))
    stranger = pod_object("b")
    stranger["metadata"]["labels"] = {}
    store.put_pod(stranger)
    assert store.pods(KEY) == []
    store.put_pod(pod_object("c"))
    store.keep_pods("team", set())
    store.drop_pod(pod_object("c"))
    assert store.pods(KEY) == []


def test_a_start_that_was_seen_teaches_the_lead_time_and_no_other() -> None:
    store = Store()
    store.put_pod(pod_object("seen", is_ready=False))
    assert (replica(store).created_s, replica(store).ready_s) == (CREATED_S, None)
    store.put_pod(pod_object("seen"))
    assert replica(store).ready_s == CREATED_S + 120.0
    store.put_pod(pod_object("seen", is_ready=False, changed="2026-01-01T00:10:00Z"))
    assert replica(store).created_s == CREATED_S + 600.0, "it has all patience again"
    store.put_pod(pod_object("seen", changed="2026-01-01T00:12:00Z"))
    assert (replica(store).created_s, replica(store).ready_s) == (CREATED_S, CREATED_S + 120.0)
    fresh = Store()
    fresh.put_pod(pod_object("seen", changed="2026-01-01T00:12:00Z"))
    assert replica(fresh).ready_s is None, "perhaps not for the first time"


def test_a_clock_ahead_of_ours_makes_no_replica_from_the_future() -> None:
    store = Store()
    store.put_pod(pod_object(is_ready=False, metadata={"creationTimestamp": "2026-01-01T01:00:00Z"}))
    assert replica(store).created_s == NOW_S
