"""YAML text to plain values that remember their lines, with every mistake of the text collected on the way.

PyYAML's own constructor keeps the last of two equal keys, forgets positions and expands aliases without a limit. Here
its node trees are walked instead.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from pagefleet.api.manifest_scalars import TAG, Loader, read_bool, read_float, read_int

Path = tuple[str | int, ...]

MAX_VALUES = 50_000
"""Values that one document may expand to; nested aliases reach billions in a few lines ("billion laughs")."""
MAX_DEPTH = 100

# What PyYAML says, and what people need to hear.
_SYNTAX_HINTS = (
    ("found character '\\t'", "a tab stands where YAML takes only spaces; replace it with spaces"),
    ("mapping values are not allowed", "a ':' stands where none is allowed; check the indentation, or quote the value"),
    ("expected <block end>", "the indentation does not match the lines above; line up the fields of one section"),
    ("could not find expected ':'", "a field has no ':'; write it as `field: value`"),
    ("found undefined alias", "an alias (*name) has no anchor (&name) before it in this document"),
    ("found unexpected end of stream", "a quote is opened and never closed"),
    ("expected ',' or '}'", "a '{' is never closed, or a ',' is missing"),
    ("expected ',' or ']'", "a '[' is never closed, or a ',' is missing"),
)


@dataclass(frozen=True)
class Position:
    """Where a value's key stands in the text, from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Problem:
    """A mistake in the text of one document."""

    document: int
    position: Position
    path: Path
    message: str


@dataclass(frozen=True)
class Document:
    """One YAML document as plain values. `value` is None where the document is empty or could not be read."""

    index: int
    """Number in the file, from 1."""
    value: object
    positions: dict[Path, Position]
    problems: tuple[Problem, ...]

    def position(self, path: Path) -> Position:
        """Return where the value at a path stands, or the nearest value around it that exists."""
        while path and path not in self.positions:
            path = path[:-1]
        return self.positions.get(path, Position(1, 1))


def read_documents(text: str) -> Iterator[Document]:
    """Yield the documents of a YAML text. A syntax error ends them, as the problem of the last one. Never raises."""
    index = 0
    try:
        for node in yaml.compose_all(text, Loader=Loader):
            index += 1
            yield _Reader(index).read(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)
        yield _broken(index + 1, position, _syntax_message(error.problem or error.context or str(error)))
    except yaml.reader.ReaderError as error:
        position = Position(text.count("\n", 0, error.position) + 1, 1)
        yield _broken(index + 1, position, f"the character U+{error.character:04X} is not allowed in YAML; remove it")
    except RecursionError:
        yield _broken(index + 1, Position(1, 1), f"values are nested too deeply; {MAX_DEPTH} levels are the most")
    except (ValueError, OverflowError):  # PyYAML passes an escape such as "\U7fffffff" on to chr()
        yield _broken(index + 1, Position(1, 1), "a quoted text has an escape (\\x, \\u or \\U) that is no character")


def _broken(index: int, position: Position, message: str) -> Document:
    return Document(index, None, {}, (Problem(index, position, (), message),))


def _syntax_message(problem: str) -> str:
    for start, hint in _SYNTAX_HINTS:
        if problem.startswith(start):
            return hint
    return f"this is not YAML: {problem}"


class _UnreadableError(Exception):
    """The document can't be expanded at all; the message says why."""


@dataclass
class _Reader:
    """Turns the node tree of one document into values."""

    index: int
    positions: dict[Path, Position] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    values: int = 0
    open_nodes: list[yaml.Node] = field(default_factory=list)

    def read(self, node: yaml.Node) -> Document:
        self.positions[()] = _position(node)
        try:
            value = self._value(node, ())
        except _UnreadableError as error:
            value = None
            self.problems.append(Problem(self.index, _position(self.open_nodes[-1]), (), str(error)))
        return Document(self.index, value, self.positions, tuple(self.problems))

    def _value(self, node: yaml.Node, path: Path) -> object:
        self.values += 1
        if any(node is open_node for open_node in self.open_nodes):
            raise _UnreadableError(
                "an alias (*name) stands inside its own anchor (&name), so the value would never end"
            )
        if self.values > MAX_VALUES:
            raise _UnreadableError(
                f"this document has more than {MAX_VALUES} values, counting each alias anew; split it"
            )
        if len(self.open_nodes) >= MAX_DEPTH:
            raise _UnreadableError(f"values are nested too deeply; {MAX_DEPTH} levels are the most")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self.open_nodes.append(node)
        if isinstance(node, yaml.MappingNode):
            value: object = self._mapping(node, path)
        else:
            value = self._sequence(node, path)
        self.open_nodes.pop()
        return value

    def _sequence(self, node: yaml.Node, path: Path) -> list[object]:
        self._check_tag(node, "seq", path)
        for index, item in enumerate(node.value):
            self.positions.setdefault((*path, index), _position(item))
        return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        self._check_tag(node, "map", path)
        value: dict[str, object] = {}
        merged: list[yaml.Node] = []
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{TAG}merge":
                merged += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                continue
            key = self._key(key_node, path)
            if key is None:
                continue
            if key in seen:
                message = f"is written twice, first on line {seen[key]}; keep one of them"
                self._problem(key_node, (*path, key), message)
                continue
            seen[key] = _position(key_node).line
            self.positions.setdefault((*path, key), _position(key_node))
            value[key] = self._value(value_node, (*path, key))
        for source in merged:  # after the keys written here, and in order: the first one to give a key wins
            self._merge(source, value, path)
        return value

    def _merge(self, source: yaml.Node, into: dict[str, object], path: Path) -> None:
        if not isinstance(source, yaml.MappingNode):
            self._problem(source, path, "a merge (<<) takes the alias of a section, such as `<<: *defaults`")
            return
        given = self._value(source, path)
        if isinstance(given, dict):
            for key, value in given.items():
                into.setdefault(key, value)

    def _key(self, node: yaml.Node, path: Path) -> str | None:
        value = self._scalar(node, path) if isinstance(node, yaml.ScalarNode) else None
        if isinstance(value, str):
            return value
        written = node.value if isinstance(node, yaml.ScalarNode) else "a list or section"
        self._problem(node, path, f"a field name must be text, not {written or 'empty'}; write it in quotes")
        return None

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> object:
        text: str = node.value
        kind = node.tag.removeprefix(TAG)
        try:
            if kind == "null":
                return None
            if kind == "bool":
                return read_bool(text)
            if kind == "int":
                return read_int(text)
            if kind == "float":
                return read_float(text)
        except ValueError:  # such as `0x_`, `!!int abc`, `.inf`, 5,000 digits
            self._problem(node, path, f"{_shortened(text)} is not a number that Kubernetes reads; write it in digits")
            return None
        # Kubernetes has no dates: they travel as text.
        if kind not in ("str", "timestamp", "value", "merge"):
            self._problem(node, path, f"the tag {_shown_tag(node.tag)} means nothing to Kubernetes; remove it")
        return text

    def _check_tag(self, node: yaml.Node, kind: str, path: Path) -> None:
        if node.tag != f"{TAG}{kind}":
            self._problem(node, path, f"the tag {_shown_tag(node.tag)} means nothing to Kubernetes; remove it")

    def _problem(self, node: yaml.Node, path: Path, message: str) -> None:
        self.problems.append(Problem(self.index, _position(node), path, message))


def _position(node: yaml.Node) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)


def _shown_tag(tag: str) -> str:
    return re.sub(f"^{TAG}", "!!", tag)


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 40 else f"{text[:37]}..."
