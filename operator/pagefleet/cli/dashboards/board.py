"""What a dashboard is made of: boards of rows of panels of queries, with units and thresholds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

COLUMNS = 24
"""Width of Grafana's grid."""


class PanelKind(StrEnum):
    """How a panel shows its series; the values are Grafana's names."""

    LINES = "timeseries"
    NUMBER = "stat"
    BARS = "bargauge"
    TABLE = "table"
    STATES = "state-timeline"
    """A bar for each series, coloured while its value is 1."""


class Unit(StrEnum):
    """Units of values; the values are Grafana's names."""

    NONE = "short"
    SECONDS = "s"
    RATIO = "percentunit"
    BYTES = "bytes"
    TOKENS = "suffix: tok"
    REQUESTS_PER_SECOND = "suffix: req/s"
    TOKENS_PER_SECOND = "suffix: tok/s"
    PER_SECOND = "suffix: /s"
    YES_OR_NO = "bool_yes_no"


@dataclass(frozen=True)
class Query:
    """One expression and what its series are called."""

    expression: str
    """PromQL with Grafana's variables."""
    legend: str
    """Name of each series, with labels as `{{label}}`; in a table the name of the column."""
    unit: Unit = Unit.NONE
    """Unit of a table's column."""


@dataclass(frozen=True)
class Threshold:
    """From which value on a panel turns to a colour."""

    value: float
    colour: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One picture with what it answers."""

    title: str
    description: str
    """What the reader learns, and when to worry."""
    queries: Sequence[Query]
    unit: Unit = Unit.NONE
    kind: PanelKind = PanelKind.LINES
    thresholds: Sequence[Threshold] = ()
    width: int = 8
    """In columns of the grid."""
    is_stacked: bool = False
    is_share: bool = False
    """The axis goes from 0 to 1."""
    may_be_negative: bool = False
    """The axis need not begin at 0."""

    @property
    def height(self) -> int:
        """In rows of the grid."""
        return {PanelKind.NUMBER: 4, PanelKind.TABLE: 9}.get(self.kind, 8)


@dataclass(frozen=True)
class Row:
    """Panels that belong together."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A choice at the top of a board, filled with the values of a label."""

    name: str
    label: str
    """For people."""
    of: str
    """Series whose label it is, as a selector; the label has the variable's name unless `from_label` says otherwise."""
    from_label: str = ""


@dataclass(frozen=True, kw_only=True)
class Board:
    """One dashboard."""

    name: str
    """File name, and the tail of Grafana's uid."""
    title: str
    description: str
    variables: Sequence[Variable]
    rows: Sequence[Row]

    @property
    def panels(self) -> Iterator[Panel]:
        """All panels in reading order."""
        for row in self.rows:
            yield from row.panels


@dataclass(frozen=True)
class Place:
    """Where something lies in the grid, from the upper left corner."""

    x: int
    y: int
    width: int
    height: int


def lay_out(board: Board) -> Iterator[tuple[Row | Panel, Place]]:
    """Yield each row's title and its panels with their places; a panel that is too wide begins a new line."""
    y = 0
    for row in board.rows:
        yield row, Place(0, y, COLUMNS, 1)
        x, y, line_height = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, line_height = 0, y + line_height, 0
            yield panel, Place(x, y, panel.width, panel.height)
            x, line_height = x + panel.width, max(line_height, panel.height)
        y += line_height
