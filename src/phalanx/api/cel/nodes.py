"""What an expression consists of: the tree between `parser.py` and `checker.py`.

`at` is where in the text a node stands, as faults tell it: of a name its beginning, of an operator
the operator, of a call its parenthesis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias


class BadExpression(Exception):
    """An expression that cannot be compiled: what is wrong, and where in its text."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at = at

    def shown(self, text: str) -> str:
        """The fault with its line and column, and the line itself."""
        before = text[: self.at]
        line, column = before.count("\n") + 1, self.at - (before.rfind("\n") + 1)
        source = text.split("\n")[line - 1]
        return f"ERROR: <input>:{line}:{column + 1}: {self}\n | {source}\n | {'.' * column}^"


@dataclass(frozen=True, slots=True)
class Literal:
    """A value that is written out."""

    at: int
    value: Any


@dataclass(frozen=True, slots=True)
class Name:
    """A variable, or the beginning of a function's long name."""

    at: int
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """`of.field`; optional: `of.?field`."""

    at: int
    of: Node
    field: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    """`of[key]`; optional: `of[?key]`."""

    at: int
    of: Node
    key: Node
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """`of.name(args)`, `name(args)`, or an operator by its name, such as `_+_`."""

    at: int
    name: str
    of: Node | None
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Items:
    """`[a, b]`; `[?a]` holds what an optional holds."""

    at: int
    items: tuple[Node, ...]
    optional: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Entries:
    """`{key: value}`; `{?key: value}` holds what an optional holds."""

    at: int
    entries: tuple[tuple[Node, Node], ...]
    optional: tuple[bool, ...]


Node: TypeAlias = Literal | Name | Select | Index | Call | Items | Entries


def parts(node: Node) -> tuple[Node, ...]:
    """What a node consists of."""
    match node:
        case Select():
            return (node.of,)
        case Index():
            return (node.of, node.key)
        case Call():
            return (*((node.of,) if node.of else ()), *node.args)
        case Items():
            return node.items
        case Entries():
            return tuple(part for entry in node.entries for part in entry)
    return ()
