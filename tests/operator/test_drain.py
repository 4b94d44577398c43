"""`pagefleet.operator.plan.drain`: each choice, and whole scale-downs against a controller with pods of any age."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet.operator.plan.drain import (
    DRAINED_COST,
    MOST_UNANSWERED,
    DrainMoves,
    Outcome,
    Question,
    decide_drains,
)
from pagefleet.operator.plan.observed import DrainReport, PodRecord
from tests.operator.builders import NOW, pod, ready_pod, replica_set

SETTLE_S = 5.0
EMPTY = DrainReport(is_draining=True, in_flight=0)
ANNOTATION, COST = "serving.pagefleet.io/drain", "controller.kubernetes.io/pod-deletion-cost"


def leaving(number: int, began_s: float = 30.0, **fields: Any) -> PodRecord:
    """Return a replica that was marked a while ago and no longer takes requests."""
    began = NOW - timedelta(seconds=began_s)
    base: dict[str, Any] = {"drain_began": began, "traffic": "off", "is_ready": False, "grace_s": 620.0}
    return replace(ready_pod("a", number), **{**base, **fields})


def load(in_flight: int | None = 0, cached: int | None = 0) -> DrainReport:
    return DrainReport(is_draining=False, in_flight=in_flight, cached_blocks=cached)


def decide(keep: int, *pods: PodRecord, reports: list[DrainReport | None] | None = None, **fields: Any) -> DrainMoves:
    """Decide for one ReplicaSet with these pods and what each said."""
    said = {one.uid: report for one, report in zip(pods, reports or (), strict=False) if report}
    alive = [one for one in pods if not one.is_terminating]
    replicas = fields.pop("replicas", len(alive))
    one = replica_set(
        "a", replicas, sum(each.is_ready for each in alive), **{"observed_replicas": len(alive), **fields}
    )
    return decide_drains({"a": keep}, (one,), pods, said, settle_s=SETTLE_S, now=NOW)


def chosen(moves: DrainMoves) -> list[str]:
    return [change.pod for change in moves.changes if change.labels["serving.pagefleet.io/traffic"] == "off"]


def test_a_victim_is_chosen_by_its_load_then_its_cache_then_its_age() -> None:
    pods = [ready_pod("a", number) for number in (1, 2, 3)]
    first = decide(2, *pods)
    assert (first.changes, first.replicas) == ((), {"a": 3}), "nothing is known of them yet"
    assert set(first.questions.values()) == {Question.LOAD}
    assert chosen(decide(2, *pods, reports=[load(2), load(1), load(3)])) == ["chat-a-2"]
    assert chosen(decide(2, *pods, reports=[load(1, 9), load(1, 4), load(1, 5)])) == ["chat-a-2"]
    older, newer = pods[0], replace(pods[1], created=NOW)
    assert chosen(decide(1, older, newer, reports=[load(), load()])) == ["chat-a-2"]
    silent = DrainReport(unanswered=1)
    assert chosen(decide(2, *pods, reports=[silent, load(7), silent])) == ["chat-a-2"], "unknown is never zero"
    assert len(chosen(decide(0, *pods))) == 3, "where all leave, nobody needs to be asked"


def test_who_serves_nobody_leaves_first() -> None:
    unscheduled, pending = pod("a", 1), pod("a", 2, node="node-1")
    loading = pod("a", 3, phase="Running", node="node-1", is_running=True)
    serving = [ready_pod("a", number) for number in (4, 5)]
    all_pods = [*serving, loading, pending, unscheduled]
    assert chosen(decide(4, *all_pods)) == [unscheduled.name]
    both = decide(3, *all_pods)
    assert chosen(both) == [unscheduled.name, pending.name]
    assert {change.annotations[COST] for change in both.changes} == {str(DRAINED_COST)}, "they may start meanwhile"
    assert both.replicas == {"a": 5}, "the pod list does not show that yet"
    seen = [replace(one, drain_began=NOW, traffic="off", deletion_cost=DRAINED_COST) for one in (pending, unscheduled)]
    moves = decide(2, *serving, loading, *seen)
    assert (chosen(moves), moves.replicas) == (["chat-a-3"], {"a": 3})
    crashed = replace(loading, is_running=False)
    assert decide(2, crashed, *serving).changes[0].annotations[COST] == str(DRAINED_COST), "it has nothing to drain"


def test_a_drain_takes_its_steps_in_order() -> None:
    others = [ready_pod("a", number) for number in (2, 3)]
    (mark,) = decide(2, ready_pod("a", 1), *others, reports=[load(0), load(1), load(1)]).changes
    assert mark.annotations == {ANNOTATION: NOW.isoformat(timespec="milliseconds")}
    fresh = leaving(1, began_s=2, is_ready=True)
    assert decide(2, fresh, *others).questions == {}, "proxies may still send it requests"
    settled = leaving(1, began_s=6, is_ready=True)
    assert decide(2, settled, *others).questions == {settled.uid: Question.DRAIN}
    busy = decide(2, settled, *others, reports=[DrainReport(is_draining=True, in_flight=2)])
    assert (busy.changes, busy.replicas, busy.in_flight, busy.draining) == ((), {"a": 3}, 2, 1)
    (cost,) = decide(2, settled, *others, reports=[EMPTY]).changes
    assert cost.annotations[COST] == str(DRAINED_COST)
    assert decide(2, settled, *others, reports=[EMPTY]).replicas == {"a": 3}, "the pod list does not show the cost"
    moves = decide(2, replace(settled, deletion_cost=DRAINED_COST), *others, reports=[EMPTY])
    assert moves.replicas == {"a": 2}
    assert [(one.pod, one.outcome) for one in moves.departures] == [("chat-a-1", Outcome.EMPTY)]


@pytest.mark.parametrize("fields", [{"observed_replicas": 2}, {"has_settled": False}, {"replicas": 2}])
def test_nothing_leaves_before_the_controller_has_followed(fields: dict[str, Any]) -> None:
    done = leaving(1, deletion_cost=DRAINED_COST)
    moves = decide(1, done, ready_pod("a", 2), ready_pod("a", 3), reports=[EMPTY, load(), load()], **fields)
    assert moves.replicas == {"a": fields.get("replicas", 3)}


def test_replicas_that_were_never_made_are_not_waited_for() -> None:
    pods = [ready_pod("a", 1), ready_pod("a", 2)]
    assert decide(1, *pods, replicas=5).replicas == {"a": 2}
    assert decide(3, *pods, replicas=5).replicas == {"a": 3}


def test_silence_and_the_deadline_end_a_drain_and_say_so() -> None:
    other = ready_pod("a", 2)
    silent = leaving(1, deletion_cost=DRAINED_COST, is_ready=True)
    (gone,) = decide(1, silent, other, reports=[DrainReport(unanswered=MOST_UNANSWERED)]).departures
    assert (gone.outcome, "does not answer /drain" in gone.reason) == (Outcome.DEADLINE, True)
    late = leaving(1, began_s=621, deletion_cost=DRAINED_COST)
    (gone,) = decide(1, late, other, reports=[DrainReport(is_draining=True, in_flight=1)]).departures
    assert (gone.outcome, gone.reason) == (Outcome.DEADLINE, "its requests did not end within 620 s")


def test_a_drained_pod_that_seems_ready_waits_where_another_does_not() -> None:
    done = leaving(1, began_s=8, is_ready=True, deletion_cost=DRAINED_COST)
    starting = pod("a", 2, phase="Running", node="node-1", is_running=True)
    assert decide(1, done, starting, reports=[EMPTY]).replicas == {"a": 2}, "the controller would take the other"
    assert decide(1, replace(done, is_ready=False), starting, reports=[EMPTY]).replicas == {"a": 1}


def test_a_drain_that_was_called_off_and_resumed_waits_for_the_probe_however_old_its_mark_is() -> None:
    resumed = leaving(1, began_s=300, is_ready=True, deletion_cost=DRAINED_COST)
    busy = leaving(2, began_s=12)
    reports: list[DrainReport | None] = [EMPTY, DrainReport(is_draining=True, in_flight=1)]
    assert decide(0, resumed, busy, reports=reports).replicas == {"a": 2}, "the controller would take the busy one"
    assert decide(0, replace(resumed, is_ready=False), busy, reports=reports).replicas == {"a": 1}


def test_a_drain_is_called_off_for_the_one_marked_last_and_put_back_last() -> None:
    early, late, other = leaving(1, began_s=40), leaving(2, began_s=20), ready_pod("a", 3)
    moves = decide(2, early, late, other)
    assert moves.questions == {early.uid: Question.DRAIN, late.uid: Question.UNDRAIN}
    assert moves.changes == (), "not back on its Service before it takes requests"
    moves = decide(2, early, late, other, reports=[EMPTY, DrainReport(is_draining=False, in_flight=0)])
    back = next(change for change in moves.changes if change.pod == late.name)
    assert (back.labels["serving.pagefleet.io/traffic"], back.annotations) == ("on", {ANNOTATION: None})
    assert back.outcome is Outcome.CALLED_OFF
    assert decide(5, early, late, other).replicas == {"a": 5}


def test_a_pod_of_an_older_operator_and_an_edited_one_are_put_on_their_service() -> None:
    moves = decide(2, replace(ready_pod("a", 1), traffic=None), replace(ready_pod("a", 2), traffic="off"))
    assert [(one.pod, one.outcome) for one in moves.changes] == [("chat-a-1", None), ("chat-a-2", None)]


@dataclass
class World:
    """One ReplicaSet with its controller, kubelets, engines, and clients behind a Service."""

    wanted: int = 3
    replicas: int = 3
    observed: int = 3
    now: datetime = NOW
    pods: dict[str, PodRecord] = field(default_factory=dict)
    in_flight: dict[str, int] = field(default_factory=dict)
    drains: set[str] = field(default_factory=set)
    """Engines that refuse new requests."""
    reports: dict[str, DrainReport] = field(default_factory=dict)
    asked: dict[str, Question] = field(default_factory=dict)
    made: int = 0

    def reconcile(self) -> None:
        ready = sum(one.is_ready for one in self.pods.values())
        one = replica_set("a", self.replicas, ready, observed_replicas=self.observed)
        moves = decide_drains(
            {"a": self.wanted}, (one,), tuple(self.pods.values()), self.reports, settle_s=SETTLE_S, now=self.now
        )
        assert moves.replicas["a"] >= min(self.wanted, self.replicas)
        assert moves.draining <= max(0, len(self.pods) - self.wanted)
        self.replicas = moves.replicas["a"]
        for change in moves.changes:
            record = self.pods[change.pod]
            began = change.annotations.get(ANNOTATION, record.drain_began and record.drain_began.isoformat())
            cost = change.annotations.get(COST, str(record.deletion_cost))
            self.pods[change.pod] = replace(
                record,
                traffic=change.labels["serving.pagefleet.io/traffic"],
                drain_began=datetime.fromisoformat(began) if began else None,
                deletion_cost=int(cost or 0),
            )
        for uid in [uid for uid in self.reports if self.asked.get(uid) != moves.questions.get(uid)]:
            del self.reports[uid]
        self.asked = dict(moves.questions)

    def follow(self) -> None:
        """Do what the ReplicaSet's controller does: no node, pending, not ready, cheapest first."""
        while len(self.pods) < self.replicas:
            self.made += 1
            one = pod("a", self.made, created=self.now, grace_s=600.0)
            self.pods[one.name] = one

        def rank(one: PodRecord) -> tuple[object, ...]:
            return one.node is not None, one.phase != "Pending", one.is_ready, one.deletion_cost

        for one in sorted(self.pods.values(), key=rank)[: len(self.pods) - self.replicas]:
            busy = self.in_flight.get(one.uid, 0)
            waited_s = (self.now - one.drain_began).total_seconds() if one.drain_began else 0.0
            assert not busy or waited_s >= one.grace_s, f"{one.name} left with {busy} requests"
            del self.pods[one.name]
        self.observed = len(self.pods)

    def start(self) -> None:
        """Bring each pod that starts one step further; controllers follow sooner than engines start."""
        if len(self.pods) > self.replicas:
            return
        for name, one in self.pods.items():
            if one.node is None:
                self.pods[name] = replace(one, node="node-1")
            elif not one.is_running:
                self.pods[name] = replace(one, phase="Running", is_running=True)

    def probe(self) -> None:
        for name, one in self.pods.items():
            self.pods[name] = replace(one, is_ready=one.is_running and one.uid not in self.drains)

    def answer(self) -> None:
        for one in self.pods.values():
            question = self.asked.get(one.uid)
            if question is None:
                continue
            if question is Question.DRAIN:
                assert one.traffic == "off"
                self.drains.add(one.uid)
            elif question is Question.UNDRAIN:
                self.drains.discard(one.uid)
            self.reports[one.uid] = DrainReport(one.uid in self.drains, self.in_flight.get(one.uid, 0), 0)

    def send(self) -> None:
        for one in self.pods.values():
            if one.is_ready and one.traffic == "on" and one.uid not in self.drains:
                self.in_flight[one.uid] = self.in_flight.get(one.uid, 0) + 2

    def finish(self) -> None:
        self.in_flight = {uid: max(0, count - 1) for uid, count in self.in_flight.items()}

    def restart(self) -> None:
        """Start the operator anew: it remembers nothing."""
        self.reports, self.asked = {}, {}

    def wait(self) -> None:
        self.now += timedelta(seconds=3)


STEPS = ("reconcile", "answer", "follow", "start", "probe", "send", "finish", "wait", "restart")
CALM = ("reconcile", "answer", "reconcile", "follow", "start", "probe", "finish", "wait")


@settings(deadline=None)
@given(
    rounds=st.lists(
        st.tuples(st.integers(0, 4), st.permutations(STEPS), st.booleans(), st.integers(1, 6)), min_size=1, max_size=12
    )
)
def test_every_scale_down_ends_and_only_drained_pods_leave(
    rounds: list[tuple[int, list[str], bool, int]],
) -> None:
    """Each round wants another number and plays all steps in some order, a few times, with or without a restart."""
    world = World()
    world.follow()
    for _ in range(3):
        world.start()
    world.probe()
    for wanted, order, restarts, times in rounds:
        world.wanted = wanted
        for step in (one for one in order * times if restarts or one != "restart"):
            getattr(world, step)()
    rounds_to_finish = max(world.in_flight.values(), default=0)
    for step in CALM * (rounds_to_finish + 20):
        getattr(world, step)()
    assert len(world.pods) == world.wanted == world.replicas
    for one in world.pods.values():
        assert (one.is_ready, one.traffic, one.drain_began, one.deletion_cost) == (True, "on", None, 0)
