"""`pagefleet.operator.plan.rollout`: each case, and whole rollouts against a controller with random pods."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet.api.v1alpha1 import RolloutStrategy
from pagefleet.operator.plan.observed import ReplicaSetRecord
from pagefleet.operator.plan.rollout import decide_scale
from tests.operator.builders import replica_set

SURGE, REPLACE = RolloutStrategy.SURGE, RolloutStrategy.REPLACE


@pytest.mark.parametrize(
    ("wanted", "sets", "strategy", "expected"),
    [
        pytest.param(2, [], SURGE, {"new": 2}, id="first revision"),
        pytest.param(5, [replica_set("new", 2)], SURGE, {"new": 5}, id="scale up"),
        pytest.param(1, [replica_set("new", 4)], SURGE, {"new": 1}, id="scale down"),
        pytest.param(0, [replica_set("old", 2), replica_set("new", 1)], SURGE, {"old": 0, "new": 0}, id="stop"),
        pytest.param(1, [replica_set("old", 1)], SURGE, {"old": 1, "new": 1}, id="surge by one"),
        pytest.param(1, [replica_set("old", 1)], REPLACE, {"old": 0, "new": 0}, id="replace drains first"),
        pytest.param(1, [replica_set("old", 0, observed_replicas=1)], REPLACE, {"old": 0, "new": 1}, id="then starts"),
        pytest.param(
            3, [replica_set("old", 3), replica_set("new", 1, 0)], SURGE, {"old": 3, "new": 1}, id="wait for the new one"
        ),
        pytest.param(
            3, [replica_set("old", 3), replica_set("new", 1)], SURGE, {"old": 2, "new": 1}, id="one old leaves"
        ),
        pytest.param(3, [replica_set("old", 3, 0)], SURGE, {"old": 0, "new": 1}, id="a broken revision leaves at once"),
        pytest.param(
            3,
            [replica_set("old", 3, 2, draining=1), replica_set("new", 1)],
            SURGE,
            {"old": 2, "new": 1},
            id="what drains takes up room and answers no more",
        ),
        pytest.param(
            3,
            [replica_set("old", 2, 1, draining=1, observed_replicas=3), replica_set("new", 2)],
            SURGE,
            {"old": 1, "new": 2},
            id="what drains goes on to leave while another leaves",
        ),
        pytest.param(
            3,
            [replica_set("old", 2, observed_replicas=3), replica_set("new", 1)],
            SURGE,
            {"old": 2, "new": 2},
            id="no second move before the first is done",
        ),
        pytest.param(
            2,
            [replica_set("older", 1), replica_set("old", 1), replica_set("new", 1)],
            SURGE,
            {"older": 0, "old": 1, "new": 1},
            id="oldest first",
        ),
        pytest.param(1, [replica_set("old", 5)], SURGE, {"old": 1, "new": 0}, id="fewer wanted in the middle"),
    ],
)
def test_each_case(
    wanted: int, sets: list[ReplicaSetRecord], strategy: RolloutStrategy, expected: dict[str, int]
) -> None:
    assert decide_scale(wanted, "new", tuple(sets), strategy).replicas == expected


def test_an_empty_old_revision_is_finished_once_its_pods_are_gone() -> None:
    leaving = replica_set("old", 0, 0, observed_replicas=1)
    assert decide_scale(1, "new", (leaving, replica_set("new", 1)), SURGE).finished == ()
    gone = replace(leaving, observed_replicas=0)
    scale = decide_scale(1, "new", (gone, replica_set("new", 1)), SURGE)
    assert (scale.finished, scale.is_complete) == (("old",), True)


@given(
    wanted=st.integers(1, 6),
    before=st.integers(1, 6),
    strategy=st.sampled_from([SURGE, REPLACE]),
    order=st.lists(st.sampled_from(["ready", "follow", "reconcile"]), min_size=5, max_size=60),
)
def test_a_rollout_ends_and_never_leaves_its_bounds(
    wanted: int, before: int, strategy: RolloutStrategy, order: list[str]
) -> None:
    """Play the controller: pods appear and leave when it follows, and become ready one at a time."""
    sets = {"old": replica_set("old", before)}
    surge = 0 if strategy is REPLACE else 1
    least = min(wanted, before) - (1 - surge)
    most = max(wanted + surge, before)
    for step in [*order, *["reconcile", "follow", "ready"] * 40]:
        if step == "reconcile":
            scale = decide_scale(wanted, "new", tuple(sets.values()), strategy)
            for revision, replicas in scale.replicas.items():
                one = sets.get(revision) or replica_set(revision, 0)
                sets[revision] = replace(one, replicas=replicas)
            for revision in scale.finished:
                del sets[revision]
        for revision, one in sets.items():
            if step == "follow":
                ready = min(one.ready_replicas, one.replicas)
                sets[revision] = replace(one, observed_replicas=one.replicas, ready_replicas=ready)
            elif step == "ready" and one.ready_replicas < one.observed_replicas:
                sets[revision] = replace(one, ready_replicas=one.ready_replicas + 1)
        assert sum(one.replicas for one in sets.values()) <= most
        assert sum(one.ready_replicas for one in sets.values()) >= least
    assert {name: (one.replicas, one.ready_replicas) for name, one in sets.items()} == {"new": (wanted, wanted)}
