"""`pagefleet.cli.play.plan`: which replicas start and stop."""

from typing import Any

import pytest

from pagefleet.cli.play.leaving import PresentReplica
from pagefleet.cli.play.plan import Changes, WantedService, plan_changes
from pagefleet.cli.play.replica import Phase

READY, LOADING, FAILED = Phase.READY, Phase.LOADING, Phase.FAILED
RETIRING, DRAINING = Phase.RETIRING, Phase.DRAINING


def wanted(replicas: int, configuration: str = "new", refusal: str = "") -> WantedService:
    return WantedService("chat", "chat", replicas, (configuration,), refusal)


def present(*replicas: tuple[str, Phase]) -> list[PresentReplica]:
    return [
        PresentReplica(number, (configuration,), phase) for number, (configuration, phase) in enumerate(replicas, 1)
    ]


@pytest.mark.parametrize(
    ("case", "service", "replicas", "changes"),
    [
        ("nothing runs", wanted(2), [], Changes(start=2)),
        ("all is well", wanted(1), [("new", READY)], Changes()),
        ("scaled up", wanted(3), [("new", READY)], Changes(start=2)),
        ("scaled down, the one that loads goes", wanted(1), [("new", READY), ("new", LOADING)], Changes(stop=(2,))),
        ("scaled down, the youngest goes", wanted(1), [("new", READY), ("new", READY)], Changes(retire=(2,))),
        ("scaled to zero", wanted(0), [("new", READY)], Changes(retire=(1,))),
        ("retiring counts for nothing", wanted(1), [("new", READY), ("new", RETIRING)], Changes()),
        ("called back before another starts", wanted(3), [("new", READY), ("new", RETIRING)], Changes(1, (), (), (2,))),
        ("no more are called back", wanted(1), [("new", RETIRING), ("new", RETIRING)], Changes(call_back=(1,))),
        ("changed while it retires", wanted(1), [("old", RETIRING), ("new", READY)], Changes(stop=(1,))),
        ("removed while it retires", None, [("new", RETIRING)], Changes(stop=(1,))),
        ("removed", None, [("new", READY), ("new", DRAINING)], Changes(stop=(1,))),
        ("failed stays failed", wanted(1), [("new", FAILED)], Changes()),
        ("changed: the new starts first", wanted(1), [("old", READY)], Changes(start=1)),
        ("changed: the old serves meanwhile", wanted(1), [("old", READY), ("new", LOADING)], Changes()),
        ("changed: the new is ready", wanted(1), [("old", READY), ("new", READY)], Changes(stop=(1,))),
        (
            "changed: one for one",
            wanted(2),
            [("old", READY)] * 2 + [("new", READY), ("new", LOADING)],
            Changes(stop=(2,)),
        ),
        ("changed: what never served goes", wanted(1), [("old", LOADING)], Changes(start=1, stop=(1,))),
        ("changed: what failed goes", wanted(1), [("old", FAILED)], Changes(start=1, stop=(1,))),
        ("changed: the new fails, the old stays", wanted(1), [("old", READY), ("new", FAILED)], Changes()),
        ("changed and to zero", wanted(0), [("old", READY)], Changes(stop=(1,))),
        ("changed twice", wanted(1), [("older", READY), ("old", LOADING)], Changes(start=1, stop=(2,))),
        ("refused: what ran goes on", wanted(1, refusal="no"), [("old", READY)], Changes()),
        ("refused at first", wanted(1, refusal="no"), [], Changes()),
        ("draining counts for nothing", wanted(1), [("new", DRAINING)], Changes(start=1)),
    ],
)
def test_changes(case: str, service: WantedService | None, replicas: list[tuple[str, Phase]], changes: Changes) -> None:
    assert plan_changes(service, present(*replicas)) == changes


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"phase": LOADING, "in_flight": 0}, {"phase": READY, "in_flight": 0}),
        ({"in_flight": 1, "cached_blocks": 9}, {"in_flight": 2, "cached_blocks": 0}),
        ({"in_flight": 1, "cached_blocks": 3}, {"in_flight": 1, "cached_blocks": 4}),
    ],
)
def test_the_cheapest_to_lose_leaves_first(first: dict[str, Any], second: dict[str, Any]) -> None:
    replicas = [
        PresentReplica(number, ("new",), **{"phase": READY, **one}) for number, one in enumerate((first, second), 1)
    ]
    changes = plan_changes(wanted(1), replicas)
    assert (*changes.stop, *changes.retire) == (1,)


def test_the_busiest_is_called_back() -> None:
    replicas = [PresentReplica(number, ("new",), RETIRING, in_flight=3 - number) for number in (1, 2)]
    assert plan_changes(wanted(1), replicas) == Changes(call_back=(1,))
