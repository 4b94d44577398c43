"""`pagefleet.operator.store`: events, own writes and lists, in any order."""

from typing import Any

from pagefleet.api.labels import SERVICE_LABEL
from pagefleet.api.resources import INFERENCE_SERVICES, PODS, SERVICES
from pagefleet.operator.store import ServiceKey, Store

KEY = ServiceKey("team", "chat")
JsonObject = dict[str, Any]


def item(name: str, version: int, *, generation: int = 1, **fields: Any) -> JsonObject:
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": f"uid-{name}",
        "resourceVersion": str(version),
        "generation": generation,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {SERVICE_LABEL: "chat"},
    }
    return {"metadata": metadata, **fields}


def test_a_change_of_spec_counts_and_an_echo_of_our_status_does_not() -> None:
    store = Store()
    assert store.put(INFERENCE_SERVICES, item("chat", 10)) == KEY
    assert store.put(INFERENCE_SERVICES, item("chat", 11, status={"phase": "Ready"})) is None
    assert store.put(INFERENCE_SERVICES, item("chat", 12, generation=2)) == KEY
    entry = store.find(KEY)
    assert entry is not None
    assert entry.text is not None
    assert "uid-chat" in entry.text


def test_older_observations_never_replace_newer_ones() -> None:
    store = Store()
    store.put(INFERENCE_SERVICES, item("chat", 20, generation=3))
    assert store.put(INFERENCE_SERVICES, item("chat", 15, generation=2)) is None
    assert store.drop(INFERENCE_SERVICES, item("chat", 15)) is None
    assert store.find(KEY) is not None


def test_an_answer_that_comes_after_the_deletion_brings_nothing_back() -> None:
    store = Store()
    store.put(INFERENCE_SERVICES, item("chat", 20))
    assert store.drop(INFERENCE_SERVICES, item("chat", 30)) == KEY
    assert store.put(INFERENCE_SERVICES, item("chat", 25)) is None
    assert store.find(KEY) is None
    assert store.put(INFERENCE_SERVICES, item("chat", 31)) == KEY


def test_a_list_drops_ghosts_but_not_what_is_newer_than_itself() -> None:
    store = Store()
    for name, version in (("chat", 10), ("ghost", 11), ("new", 50)):
        store.put(INFERENCE_SERVICES, item(name, version))
    changed = store.forget_missing(INFERENCE_SERVICES, {(ServiceKey("team", "chat"), "chat")}, 40)
    assert changed == {ServiceKey("team", "ghost")}
    assert {key.name for key in store.services()} == {"chat", "new"}


def test_children_belong_to_the_service_of_their_label_and_outlive_it_in_the_store() -> None:
    pods: list[tuple[str, bool]] = []
    store = Store(on_pod=lambda _key, pod, is_gone: pods.append((pod.name, is_gone)))
    assert store.put(SERVICES, item("chat", 5)) == KEY
    assert store.find(KEY) is None
    store.put(INFERENCE_SERVICES, item("chat", 6))
    assert store.put(PODS, item("chat-1", 7, status={"phase": "Pending"})) == KEY
    assert store.put(PODS, item("chat-1", 8, status={"phase": "Pending"})) is None, "nothing that a plan reads changed"
    entry = store.find(KEY)
    assert entry is not None
    assert set(entry.children) == {("Service", "chat")}
    store.drop(INFERENCE_SERVICES, item("chat", 9))
    assert store.find(KEY) is None
    store.drop(PODS, item("chat-1", 10))
    assert pods == [("chat-1", False), ("chat-1", False), ("chat-1", True)]
    store.drop(SERVICES, item("chat", 11))
    assert len(store) == 0
