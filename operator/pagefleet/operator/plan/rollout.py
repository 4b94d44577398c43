"""How many replicas each revision gets, so that a new one takes over without losing capacity.

The wanted number N comes from `spec.replicas`. Surge (and Auto) lets N + 1 replicas exist and keeps N answering;
Replace lets N exist and N - 1 answer. At rest only the target revision is left, with N replicas. Each call makes one
move:

 1. N is 0                                  every revision goes to 0
 2. only the target exists                  it gets N
 3. an old revision has replicas that       those leave first: they serve nobody and may hold an accelerator;
    don't answer                            so a fixed manifest replaces a broken one soon
 4. there is room below the bound           the target grows into it, never above N
 5. more answer than must                   old replicas leave, oldest revision first, as many as are not needed
 6. otherwise                               wait: a replica starts, or one leaves

A revision shrinks only when its controller has followed the last change: two moves at once could take one too many.
Replicas that leave are drained first (`drain.py`): until they are gone they take up room, but answer no more, and once
chosen to leave an old one does not come back.
An old revision with no replica left, none wanted and none ending, is deleted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet.api.v1alpha1 import RolloutStrategy
from pagefleet.operator.plan.observed import ReplicaSetRecord


@dataclass(frozen=True, slots=True)
class Scale:
    """Replicas to keep of each revision, and old revisions to delete."""

    replicas: Mapping[str, int]
    """What is beyond these is drained, then leaves."""
    finished: tuple[str, ...]
    is_complete: bool
    """Only the target is left, and it has as many answering replicas as wanted."""


def decide_scale(
    wanted: int, target: str, replica_sets: tuple[ReplicaSetRecord, ...], strategy: RolloutStrategy
) -> Scale:
    """Return the next move. `replica_sets` come oldest revision first; the target may be among them or not yet."""
    present = {one.revision: one for one in replica_sets}
    new = present.get(target)
    old = [one for one in replica_sets if one.revision != target]
    finished = tuple(one.revision for one in old if _is_empty(one))
    old = [one for one in old if not _is_empty(one)]
    if wanted == 0:  # case 1
        scale = {**dict.fromkeys((one.revision for one in old), 0), target: 0}
    elif not old:  # case 2
        scale = {target: wanted}
    else:
        surge = 0 if strategy is RolloutStrategy.REPLACE else 1
        scale = _take_over(wanted, target, new, old, surge=surge)
    is_complete = (
        not old
        and new is not None
        and new.has_settled
        and new.replicas == wanted == new.observed_replicas
        and new.ready_replicas == wanted
    )
    return Scale(scale, finished, is_complete)


def _take_over(
    wanted: int, target: str, new: ReplicaSetRecord | None, old: list[ReplicaSetRecord], *, surge: int
) -> dict[str, int]:
    scale = {one.revision: max(0, one.replicas - one.draining) for one in old}
    for one in old:  # case 3
        if one.has_settled and _has_followed(one):
            scale[one.revision] = min(scale[one.revision], one.ready_replicas)
    new_replicas = new.replicas if new else 0
    room = wanted + surge - sum(one.replicas for one in old) - new_replicas
    scale[target] = min(wanted, new_replicas + max(0, room))  # case 4
    new_ready = min(new.ready_replicas, wanted) if new and new.has_settled else 0
    must_answer = wanted - (1 - surge)
    spare = new_ready + sum(min(one.ready_replicas, scale[one.revision]) for one in old) - must_answer
    for one in old:  # case 5
        if spare > 0 and one.has_settled and _has_followed(one):
            leaving = min(spare, scale[one.revision])
            scale[one.revision] -= leaving
            spare -= leaving
    return scale


def _has_followed(one: ReplicaSetRecord) -> bool:
    return one.observed_replicas == one.replicas


def _is_empty(one: ReplicaSetRecord) -> bool:
    return one.replicas == 0 and one.observed_replicas == 0 and one.has_settled
