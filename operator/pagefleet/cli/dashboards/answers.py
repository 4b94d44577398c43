"""What Prometheus answers to a board's queries, as values; and the queries as it takes them, without variables."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pagefleet.cli.dashboards.board import Panel, PanelKind, Query

INSTANT_KINDS = (PanelKind.TABLE, PanelKind.BARS)
"""Kinds that show the last value alone."""


@dataclass(frozen=True)
class Series:
    """One series: its labels, and its values at times in seconds since 1970."""

    labels: Mapping[str, str]
    times_s: Sequence[float]
    values: Sequence[float]

    @property
    def last(self) -> float:
        """The newest value."""
        return self.values[-1]


@dataclass(frozen=True)
class Answer:
    """What one query of a panel brought."""

    query: Query
    series: Sequence[Series] = field(default_factory=tuple)

    def name(self, series: Series) -> str:
        """Return what a series is called: the query's legend with its labels filled in."""
        return re.sub(r"\{\{(\w+)\}\}", lambda found: series.labels.get(found[1], ""), self.query.legend).strip()


@dataclass(frozen=True)
class AnsweredPanel:
    """A panel and what all of its queries brought."""

    panel: Panel
    answers: Sequence[Answer]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not any(answer.series for answer in self.answers)


def fill_in(expression: str, choices: Mapping[str, str], *, rate_interval_s: int) -> str:
    """Return an expression with a board's variables replaced; a variable without a choice takes everything."""
    filled = expression.replace("$__rate_interval", f"{rate_interval_s}s")
    return re.sub(r"\$(\w+)", lambda found: choices.get(found[1], ".*"), filled)
