"""Recorded traces in their published formats: Azure's CSV, Mooncake's JSON lines, ServeGen's rates."""

import csv
import json
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from pagefleet.autoscaler.simulate.workload import Arrival, Workload


class UnreadableTrace(Exception):
    """A trace file is not what its name says."""


def read_azure(path: Path) -> Workload:
    """Read `TIMESTAMP,ContextTokens,GeneratedTokens` of the Azure LLM inference traces; raises UnreadableTrace."""
    rows: list[tuple[float, int, int]] = []
    with path.open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                # Seven digits of a second are more than fromisoformat takes.
                seconds = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
                rows.append((seconds, int(row["ContextTokens"]), int(row["GeneratedTokens"])))
            except (KeyError, TypeError, ValueError) as error:
                raise UnreadableTrace(
                    f"{path}, line {number}: expected TIMESTAMP,ContextTokens,GeneratedTokens such as "
                    f"2023-11-16 18:15:46.6805900,374,44; found {list(row.values())}"
                ) from error
    return _workload(path, [(seconds, prompt, output, ()) for seconds, prompt, output in rows])


def read_mooncake(path: Path) -> Workload:
    """Read JSON lines with `timestamp` (ms), `input_length`, `output_length`, `hash_ids`; raises UnreadableTrace.

    Each hash stands for a block of 512 tokens and all before it; a last block that is not full is left out.
    """
    rows: list[tuple[float, int, int, tuple[int, ...]]] = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            row = json.loads(line)
            prompt = int(row["input_length"])
            hashes = tuple(int(value) for value in row["hash_ids"][: prompt // 512])
            rows.append((row["timestamp"] / 1000, prompt, int(row["output_length"]), hashes))
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableTrace(
                f'{path}, line {number}: expected {{"timestamp": 0, "input_length": 6758, "output_length": 500, '
                f'"hash_ids": [0, 1]}}; found {line[:80]!r}'
            ) from error
    return _workload(path, rows)


def read_rates(path: Path) -> list[tuple[float, float]]:
    """Read a table of times and rates into (seconds, requests per second) stretches; raises UnreadableTrace."""
    rows: list[tuple[float, float]] = []
    with path.open(newline="") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            try:
                rows.append((float(row[0]), float(row[1])))
            except (IndexError, ValueError) as error:
                if number > 1:  # the first line may be a header
                    raise UnreadableTrace(
                        f"{path}, line {number}: expected seconds,requests per second; found {row}"
                    ) from error
    gaps = [after[0] - before[0] for before, after in pairwise(rows)]
    if not gaps or min(gaps) <= 0:
        raise UnreadableTrace(f"{path}: the times of its {len(rows)} rows do not rise")
    return [(gap, rate) for gap, (_, rate) in zip([*gaps, gaps[-1]], rows, strict=True)]


def _workload(path: Path, rows: list[tuple[float, int, int, tuple[int, ...]]]) -> Workload:
    if not rows:
        raise UnreadableTrace(f"{path} holds no requests")
    rows.sort(key=lambda row: row[0])
    begin_s = rows[0][0]
    arrivals = tuple(
        Arrival(seconds - begin_s, max(1, prompt), max(1, output), hashes) for seconds, prompt, output, hashes in rows
    )
    return Workload(name=path.stem, arrivals=arrivals, duration_s=max(1.0, arrivals[-1].time_s))
