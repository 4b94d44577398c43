"""The decision log: what each decision was made from and what it was, a line of JSON each, exact in both directions.

A service's first line, and one every ten minutes, is whole: it holds the settings and the state that `decide` was
given. Other lines name their settings by a hash and go on from the line before. So a log that was cut anywhere can be
replayed from the first whole line of each service. Ticks in which nothing but time changed may be left out; the next
line has their times.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from pagefleet.autoscaler.decision import Decision
from pagefleet.autoscaler.settings import Settings
from pagefleet.autoscaler.snapshot import Snapshot
from pagefleet.autoscaler.state import State


class DecisionLogError(ValueError):
    """A line that is no decision; the message has its number."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One decision of one service."""

    namespace: str
    service: str
    uid: str
    """Tells a service from an earlier one of the same name."""
    mode: str
    """What was done with it: Off, Recommend, Active or Conflict."""
    snapshot: Snapshot
    settings: Settings
    state: State | None
    """What `decide` was given; None where it is what the decision before left."""
    decision: Decision
    skipped_s: tuple[float, ...] = ()
    """Times of the decisions in between that are not in the log, since nothing but time had changed."""

    def skipped_snapshots(self, before: Snapshot) -> Iterator[Snapshot]:
        """Yield the snapshots of the decisions that were left out, made from the one of the record before."""
        for time_s in self.skipped_s:
            yield at_time(before, time_s)


class _Line(BaseModel):
    """A record as it is written."""

    # Times that never were are minus infinity, for which JSON has no number.
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    namespace: str
    service: str
    uid: str
    mode: str
    settings_hash: str
    snapshot: Snapshot
    decision: Decision
    skipped_s: tuple[float, ...] = ()
    settings: Settings | None = None
    state: State | None = None


_SETTINGS = TypeAdapter(Settings)


def hash_settings(settings: Settings) -> str:
    """Return a short name of the settings' values."""
    return hashlib.sha256(_SETTINGS.dump_json(settings)).hexdigest()[:12]


def write_record(record: Record, *, settings_hash: str, with_settings: bool) -> str:
    """Return a record as one line of JSON, without its end."""
    line = _Line(
        namespace=record.namespace,
        service=record.service,
        uid=record.uid,
        mode=record.mode,
        settings_hash=settings_hash,
        snapshot=record.snapshot,
        decision=record.decision,
        skipped_s=record.skipped_s,
        settings=record.settings if with_settings else None,
        state=record.state,
    )
    # Not `exclude_none`: inside settings, none means something else than left out.
    return line.model_dump_json(exclude={name for name in ("settings", "state") if getattr(line, name) is None})


def read_records(lines: Iterable[str]) -> Iterator[Record]:
    """Yield the records of a log, each service's from its first whole line on; what begins with no `{` is left out.

    Raises:
        DecisionLogError: A line is JSON and no decision.
    """
    known: dict[str, Settings] = {}
    began: set[str] = set()
    for number, text in enumerate(lines, start=1):
        if not text.lstrip().startswith("{"):  # the process's own words, where both went to one place
            continue
        try:
            line = _Line.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the line"
            raise DecisionLogError(f"line {number} is no decision: {where}: {first['msg']}; remove it") from error
        if line.settings is not None:
            known[line.settings_hash] = line.settings
        if line.state is not None:
            began.add(line.uid)
        if line.uid in began and line.settings_hash in known:
            yield Record(
                namespace=line.namespace,
                service=line.service,
                uid=line.uid,
                mode=line.mode,
                snapshot=line.snapshot,
                settings=known[line.settings_hash],
                state=line.state,
                decision=line.decision,
                skipped_s=line.skipped_s,
            )


def at_time(snapshot: Snapshot, time_s: float) -> Snapshot:
    """Return a snapshot moved to another time, with reports as old as they were."""
    shift_s = time_s - snapshot.time_s
    return replace(
        snapshot,
        time_s=time_s,
        replicas=tuple(
            one
            if one.reading is None
            else replace(one, reading=replace(one.reading, read_s=one.reading.read_s + shift_s))
            for one in snapshot.replicas
        ),
    )
