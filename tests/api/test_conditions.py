from datetime import UTC, datetime, timedelta

import pytest

from pagefleet.api.conditions import (
    AVAILABLE,
    PLAN_ACCEPTED,
    PROGRESSING,
    READY,
    Condition,
    ConditionStatus,
    Readiness,
    find_condition,
    merge_conditions,
    readiness,
    set_condition,
)

T0 = datetime(2026, 1, 1, tzinfo=UTC)
T1 = T0 + timedelta(minutes=1)
TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


def condition(kind: str, status: ConditionStatus, reason: str = "Because", message: str = "so") -> Condition:
    return Condition(type=kind, status=status, reason=reason, message=message, last_transition_time=T0)


def test_time_moves_only_when_the_status_flips() -> None:
    first = set_condition((), READY, FALSE, "Loading", "40 %", now=T0, observed_generation=1)
    same = set_condition(first, READY, FALSE, "Loading", "60 %", now=T1, observed_generation=2)
    flipped = set_condition(same, READY, TRUE, "Serving", now=T1, observed_generation=2)
    assert [(c.last_transition_time, c.message, c.observed_generation) for c in (*first, *same, *flipped)] == [
        (T0, "40 %", 1),
        (T0, "60 %", 2),
        (T1, "", 2),
    ]


def test_set_again_changes_nothing() -> None:
    first = set_condition((), READY, TRUE, "Serving", now=T0)
    assert set_condition(first, READY, TRUE, "Serving", now=T1) == first


def test_order_does_not_depend_on_history() -> None:
    one = set_condition(set_condition((), READY, TRUE, "A", now=T0), PROGRESSING, TRUE, "B", now=T0)
    two = set_condition(set_condition((), PROGRESSING, TRUE, "B", now=T0), READY, TRUE, "A", now=T0)
    assert one == two


def test_merge_keeps_others_and_old_times() -> None:
    before = (condition(READY, TRUE), condition(PROGRESSING, TRUE))
    observed = condition(READY, TRUE, "Other").model_copy(update={"last_transition_time": T1})
    merged = merge_conditions(before, [observed])
    assert find_condition(merged, PROGRESSING) == before[1]
    ready = find_condition(merged, READY)
    assert ready is not None
    assert (ready.reason, ready.last_transition_time) == ("Other", T0)
    assert find_condition(merged, "Missing") is None


@pytest.mark.parametrize(
    ("plan", "available", "expected"),
    [
        (TRUE, TRUE, Readiness(TRUE, "Serving", "2 of 2")),
        (TRUE, FALSE, Readiness(FALSE, "Serving", "2 of 2")),
        (FALSE, FALSE, Readiness(FALSE, "TooBig", "needs 90Gi")),
        (FALSE, None, Readiness(FALSE, "TooBig", "needs 90Gi")),
        (UNKNOWN, FALSE, Readiness(FALSE, "Serving", "2 of 2")),
        (UNKNOWN, TRUE, Readiness(UNKNOWN, "TooBig", "needs 90Gi")),
        (TRUE, None, Readiness(UNKNOWN, "AvailableUnknown", "Available has not been observed yet")),
        (None, None, Readiness(UNKNOWN, "PlanAcceptedUnknown", "PlanAccepted has not been observed yet")),
    ],
)
def test_readiness(plan: ConditionStatus | None, available: ConditionStatus | None, expected: Readiness) -> None:
    conditions = []
    if plan:
        conditions.append(condition(PLAN_ACCEPTED, plan, "TooBig", "needs 90Gi"))
    if available:
        conditions.append(condition(AVAILABLE, available, "Serving", "2 of 2"))
    assert readiness(conditions) == expected


def test_wire_form_is_kubernetes() -> None:
    assert condition(READY, TRUE).to_manifest() == {
        "type": "Ready",
        "status": "True",
        "reason": "Because",
        "message": "so",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
