"""Write the decision log: which ticks become lines, and to where."""

import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import TextIO

from pagefleet.autoscaler.decision import Decision
from pagefleet.autoscaler.decision_record import Record, hash_settings, write_record
from pagefleet.autoscaler.process_settings import LoggedTicks
from pagefleet.autoscaler.service_memory import Step
from pagefleet.autoscaler.settings import Settings
from pagefleet.autoscaler.snapshot import Reading, Snapshot

WHOLE_AFTER_S = 600.0
"""Time after which a service's line holds state and settings again, so that a log can be cut."""
SAME_AGE_S = 1.0
"""A report whose age differs by less is as old as the one before."""

_LIFE = attrgetter("name", "phase", "created_s", "ready_s")
_LOAD = attrgetter(*(one.name for one in fields(Reading) if one.name != "read_s"))

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Logged:
    """What was last written of one service."""

    snapshot: Snapshot
    decision: Decision
    mode: str
    settings: Settings
    settings_hash: str
    whole_s: float
    skipped_s: list[float] = field(default_factory=list)


class DecisionLog:
    """Turn steps into lines."""

    def __init__(self, write: Callable[[str], None], ticks: LoggedTicks) -> None:
        self._write = write
        self._ticks = ticks
        self._logged: dict[str, _Logged] = {}

    def take(self, step: Step) -> None:
        """Write one service's tick, unless nothing but time has changed since its last line."""
        if step.decision is None or self._ticks is LoggedTicks.NONE:
            return
        uid, now_s = step.record.uid, step.snapshot.time_s
        before = self._logged.get(uid)
        is_whole = before is None or now_s - before.whole_s >= WHOLE_AFTER_S
        if before is not None and not is_whole and self._ticks is LoggedTicks.CHANGED and _is_same(before, step):
            before.skipped_s.append(now_s)
            return
        is_known = before is not None and before.settings == step.settings
        settings_hash = before.settings_hash if before is not None and is_known else hash_settings(step.settings)
        record = Record(
            namespace=step.record.key.namespace,
            service=step.record.key.name,
            uid=uid,
            mode=step.mode,
            snapshot=step.snapshot,
            settings=step.settings,
            state=step.state_before if is_whole else None,
            decision=step.decision,
            skipped_s=() if before is None else tuple(before.skipped_s),
        )
        self._write(write_record(record, settings_hash=settings_hash, with_settings=is_whole or not is_known))
        whole_s = now_s if is_whole or before is None else before.whole_s
        self._logged[uid] = _Logged(step.snapshot, step.decision, step.mode, step.settings, settings_hash, whole_s)

    def keep_only(self, uids: Iterable[str]) -> None:
        """Forget services that are gone."""
        for uid in self._logged.keys() - set(uids):
            del self._logged[uid]


class LogFile:
    """Lines to a file, or to standard output; a full disk costs the log and nothing else."""

    def __init__(self, path: str) -> None:
        """Open the file; raises `OSError`."""
        self._file: TextIO = sys.stdout if path == "-" else Path(path).open("a", encoding="utf-8")  # noqa: SIM115
        self._is_failing = False

    def close(self) -> None:
        """Close the file."""
        if self._file is not sys.stdout:
            with suppress(OSError):  # a full disk
                self._file.close()

    def write(self, line: str) -> None:
        """Append a line."""
        try:
            self._file.write(f"{line}\n")
            self._file.flush()
        except OSError as error:
            if not self._is_failing:
                logger.error("the decision log can't be written: %s", error)
            self._is_failing = True
        else:
            self._is_failing = False


def _is_same(before: _Logged, step: Step) -> bool:
    """Tell whether a replay may make this tick from the one before."""
    now, old = step.decision, before.decision
    if (
        now is None
        or (now.desired, now.current, now.reason, now.limited_by, now.conditions)
        != (old.desired, old.current, old.reason, old.limited_by, old.conditions)
        or before.mode != step.mode
        or before.settings != step.settings
    ):
        return False
    one, other = before.snapshot, step.snapshot
    return (
        (one.specified, one.held_requests, one.schedulable) == (other.specified, other.held_requests, other.schedulable)
        and len(one.replicas) == len(other.replicas)
        and all(
            _LIFE(replica) == _LIFE(later)
            and _is_same_reading(replica.reading, later.reading, other.time_s - one.time_s)
            for replica, later in zip(one.replicas, other.replicas, strict=True)
        )
    )


def _is_same_reading(one: Reading | None, other: Reading | None, passed_s: float) -> bool:
    """Tell whether two reports differ in nothing but their times, and are as old."""
    if one is None or other is None:
        return one is other
    return abs(other.read_s - one.read_s - passed_s) < SAME_AGE_S and _LOAD(one) == _LOAD(other)
