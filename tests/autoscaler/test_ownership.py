"""`pagefleet.autoscaler.ownership`: another writer is noticed, named, and never fought."""

from typing import Any

import pytest

from pagefleet.autoscaler.ownership import Foreign, Ownership, look
from pagefleet.autoscaler.records import ServiceRecord, read_service
from tests.autoscaler.cluster_objects import service_object

OURS = "pagefleet-autoscaler"
CLAIMED = Ownership(expected=3, is_claimed=True)


def record(replicas: int, writer: str = "kubectl-edit", **more: Any) -> ServiceRecord:
    return read_service(service_object(replicas=replicas, writer=writer, **more))


def after_restart(mode: str, last: int | None, replicas: int, writer: str, written: str) -> Ownership:
    decision = {"time": "2026-01-02T00:00:00Z", "fromReplicas": 1, "toReplicas": last, "reason": "Demand"}
    status = {"autoscaling": {"mode": mode, "lastDecisions": [] if last is None else [decision]}}
    return look(None, record(replicas, writer, written=written, status=status), is_active=True)


def test_what_is_found_at_the_beginning_is_ours() -> None:
    assert look(None, record(3), is_active=True) == CLAIMED
    assert look(CLAIMED, record(3), is_active=True) == CLAIMED


def test_our_own_write_is_no_conflict_even_if_its_answer_was_lost() -> None:
    assert look(CLAIMED, record(5, OURS), is_active=True) == Ownership(expected=5, is_claimed=True)


def test_another_writer_is_named_and_stays_until_the_number_is_back() -> None:
    found = look(CLAIMED, record(5, "kube-controller-manager"), is_active=True)
    assert found.foreign == Foreign(manager="kube-controller-manager", replicas=5)
    assert found.foreign.sentence(found.expected) == (
        "kube-controller-manager set spec.replicas to 5 where the autoscaler had 3, so nothing is scaled; to go on, "
        "set spec.replicas back to 3, or autoscaling.mode to Recommend and then to Active again"
    )
    again = look(found, record(6, "kubectl-scale"), is_active=True)
    assert again.foreign == Foreign(manager="kubectl-scale", replicas=6)
    assert look(again, record(3, "kubectl-scale"), is_active=True) == CLAIMED


def test_leaving_active_and_coming_back_resumes_from_there() -> None:
    found = look(CLAIMED, record(5), is_active=True)
    left = look(found, record(5), is_active=False)
    assert left == Ownership()
    assert look(left, record(5), is_active=True) == Ownership(expected=5, is_claimed=True)


def test_a_service_that_sleeps_may_be_woken_by_anybody() -> None:
    asleep = Ownership(expected=0, is_claimed=True)
    assert look(asleep, record(2), is_active=True) == Ownership(expected=2, is_claimed=True)


@pytest.mark.parametrize(
    ("mode", "last", "replicas", "writer", "written", "is_conflict"),
    [
        ("Active", 3, 3, "kubectl-edit", "2026-01-03T00:00:00Z", False),
        ("Active", 3, 5, OURS, "2026-01-03T00:00:00Z", False),
        ("Active", 3, 5, "kubectl-edit", "2026-01-03T00:00:00Z", True),
        ("Active", 3, 5, "kubectl-edit", "2026-01-01T00:00:00Z", False),
        ("Active", 0, 2, "kubectl-edit", "2026-01-03T00:00:00Z", False),
        ("Active", None, 5, "kubectl-edit", "2026-01-03T00:00:00Z", False),
        ("Recommend", 3, 5, "kubectl-edit", "2026-01-03T00:00:00Z", False),
        ("Conflict", 3, 5, "kubectl-edit", "2026-01-03T00:00:00Z", True),
        ("Conflict", 3, 3, "kubectl-edit", "2026-01-03T00:00:00Z", False),
        ("Conflict", None, 5, "kubectl-edit", "2026-01-03T00:00:00Z", True),
    ],
)
def test_a_new_process_goes_on_where_the_last_one_ended(
    mode: str, last: int | None, replicas: int, writer: str, written: str, is_conflict: bool
) -> None:
    found = after_restart(mode, last, replicas, writer, written)
    assert (found.foreign is not None) == is_conflict
    if is_conflict:
        assert found.expected == last
    else:
        assert found.expected == replicas
