"""From the words of an expression to its tree. Says only whether it is well formed.

expression  binary ["?" binary ":" expression]
binary      unary (operator unary)*, operators of a higher rank first
unary       ("!" | "-")* member
member      primary ("." name ["(" arguments ")"] | "[" expression "]")*
primary     literal | name ["(" arguments ")"] | "(" expression ")" | list | map
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from phalanx.api.cel.nodes import (
    BadExpression,
    Call,
    Entries,
    Index,
    Items,
    Literal,
    Name,
    Node,
    Select,
    parts,
)
from phalanx.api.cel.tokens import RESERVED, Token, tokens
from phalanx.api.cel.values import INT

T = TypeVar("T")

#: How deep expressions may be nested, how deep their trees may be, how many words they may have.
MAX_NESTED, MAX_DEPTH, MAX_TOKENS = 40, 100, 20_000

_RANKS: tuple[dict[str, str], ...] = (
    {"||": "_||_"},
    {"&&": "_&&_"},
    {"<": "_<_", "<=": "_<=_", ">": "_>_", ">=": "_>=_", "==": "_==_", "!=": "_!=_", "in": "@in"},
    {"+": "_+_", "-": "_-_"},
    {"*": "_*_", "/": "_/_", "%": "_%_"},
)
#: Sign -> its rank and the name of its function.
_OPERATORS = {sign: (rank, name) for rank, row in enumerate(_RANKS) for sign, name in row.items()}
_LOGICAL = ("_||_", "_&&_")


def parse(text: str) -> Node:
    """The tree of an expression. Raises BadExpression."""
    node = _Parser(text).whole()
    todo = [(node, 1)]
    for one, depth in todo:
        if depth > MAX_DEPTH:
            raise _too_deep(one.at)
        todo += [(part, depth + 1) for part in parts(one)]
    return node


def _too_deep(at: int) -> BadExpression:
    return BadExpression(at, f"expression recursion limit exceeded: {MAX_DEPTH}")


def _balanced(name: str, operands: list[Node], signs: list[int]) -> Node:
    """A row of the same logical operator, as a tree that is no deeper than it must be."""
    if len(operands) == 1:
        return operands[0]
    half = len(operands) // 2
    left = _balanced(name, operands[:half], signs[: half - 1])
    right = _balanced(name, operands[half:], signs[half:])
    return Call(signs[half - 1], name, None, (left, right))


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[Token] = []
        for token in tokens(text):
            self._tokens.append(token)
            if len(self._tokens) > MAX_TOKENS:
                raise BadExpression(token.at, "expression code point size exceeds limit")
        self._at = self._nested = 0

    def whole(self) -> Node:
        node = self._expression()
        self._take("end")
        return node

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _is(self, *sorts: str) -> bool:
        return self._next.sort in sorts

    def _take(self, sort: str) -> Token:
        token = self._next
        if token.sort != sort:
            wanted = {"end": "<EOF>", "name": "IDENTIFIER"}.get(sort, f"'{sort}'")
            what = f"Syntax error: mismatched input '{token.text}' expecting {wanted}"
            raise BadExpression(token.at, what)
        self._at += 1
        return token

    def _took(self, sort: str) -> Token | None:
        return self._take(sort) if self._is(sort) else None

    def _expression(self) -> Node:
        self._nested += 1
        if self._nested > MAX_NESTED:
            raise _too_deep(self._next.at)
        node = self._binary(0)
        if sign := self._took("?"):
            yes = self._binary(0)
            self._take(":")
            node = Call(sign.at, "_?_:_", None, (node, yes, self._expression()))
        self._nested -= 1
        return node

    def _binary(self, lowest: int) -> Node:
        """Operands with operators of some rank between them, from left to right."""
        node = self._unary()
        while self._next.sort in _OPERATORS:
            rank, name = _OPERATORS[self._next.sort]
            if rank < lowest:
                break
            if name in _LOGICAL:
                node = self._logical(node, rank, name)
            else:
                sign = self._take(self._next.sort)
                node = Call(sign.at, name, None, (node, self._binary(rank + 1)))
        return node

    def _logical(self, first: Node, rank: int, name: str) -> Node:
        operands, signs, sort = [first], list[int](), self._next.sort
        while self._is(sort):
            signs.append(self._take(sort).at)
            operands.append(self._binary(rank + 1))
        return _balanced(name, operands, signs)

    def _unary(self) -> Node:
        signs: list[Token] = []
        while self._is("!", "-"):
            signs.append(self._take(self._next.sort))
        minus_literal = signs and signs[-1].sort == "-" and self._is("literal")
        node = self._negative(signs.pop()) if minus_literal else self._member()
        for sign in reversed(signs):
            node = Call(sign.at, f"{sign.sort}_", None, (node,))
        return node

    def _negative(self, sign: Token) -> Node:
        """A number with a minus is one word: there is no other way to write the smallest."""
        token = self._next
        if token.value.__class__ not in (int, float):
            return Call(sign.at, "-_", None, (self._member(),))
        self._tokens[self._at] = token._replace(at=sign.at, value=-token.value)
        return self._member()

    def _member(self) -> Node:
        node = self._primary()
        while True:
            if sign := self._took("."):
                node = self._selected(node, sign)
            elif sign := self._took("["):
                optional = self._took("?") is not None
                node = Index(sign.at, node, self._expression(), optional)
                self._take("]")
            else:
                return node

    def _selected(self, of: Node, sign: Token) -> Node:
        optional = self._took("?") is not None
        name = self._take("name")
        if not optional and (opening := self._took("(")):
            return Call(opening.at, name.text, of, self._arguments(")"))
        if name.text in RESERVED:
            raise BadExpression(name.at, f"reserved identifier: {name.text}")
        return Select(sign.at, of, name.text, optional)

    def _primary(self) -> Node:
        token = self._next
        match token.sort:
            case "literal":
                return self._literal(self._take("literal"))
            case "(":
                self._take("(")
                node = self._expression()
                self._take(")")
                return node
            case "[":
                return self._items(self._take("["))
            case "{":
                return self._entries(self._take("{"))
        self._took(".")
        return self._named(self._take("name"))

    def _literal(self, token: Token) -> Node:
        if token.value.__class__ is int and token.value >= INT:
            raise BadExpression(token.at, "invalid int literal")
        return Literal(token.at, token.value)

    def _named(self, name: Token) -> Node:
        if opening := self._took("("):
            return Call(opening.at, name.text, None, self._arguments(")"))
        if name.text in RESERVED:
            raise BadExpression(name.at, f"reserved identifier: {name.text}")
        return Name(name.at, name.text)

    def _arguments(self, closing: str) -> tuple[Node, ...]:
        return self._listed(closing, self._expression)

    def _listed(self, closing: str, one: Callable[[], T]) -> tuple[T, ...]:
        found: list[T] = []
        while not self._is(closing):
            found.append(one())
            # Lists and maps may end with a comma, arguments may not.
            if not self._took(",") or (closing != ")" and self._is(closing)):
                break
        self._take(closing)
        return tuple(found)

    def _items(self, opening: Token) -> Node:
        pairs = self._listed("]", lambda: (self._took("?") is not None, self._expression()))
        return Items(opening.at, tuple(n for _, n in pairs), tuple(o for o, _ in pairs))

    def _entries(self, opening: Token) -> Node:
        entries = self._listed("}", self._entry)
        pairs = tuple((key, value) for _, key, value in entries)
        return Entries(opening.at, pairs, tuple(optional for optional, _, _ in entries))

    def _entry(self) -> tuple[bool, Node, Node]:
        optional, key = self._took("?") is not None, self._expression()
        self._take(":")
        return optional, key, self._expression()
