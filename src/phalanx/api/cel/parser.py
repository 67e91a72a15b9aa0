"""Lexer and parser: from the text of an expression to its syntax tree.

Expressions carry the offset (`at`) at which errors are reported: the start of an identifier, the
operator of an operation, the parenthesis of a call. The parser only checks that an expression is
well formed; `compiler.py` checks names and types.

expression  binary ["?" binary ":" expression]
binary      unary (operator unary)*, operators of higher precedence first
unary       ("!" | "-")* member
member      primary ("." name ["(" arguments ")"] | "[" expression "]")*
primary     literal | name ["(" arguments ")"] | "(" expression ")" | list | map
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from phalanx.api.cel.values import INT_LIMIT, UINT_LIMIT, Uint


class BadExpression(Exception):
    """An expression that cannot be compiled: the reason and the offset in its text."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at = at

    def describe(self, text: str) -> str:
        """Format the error with line, column and the source line."""
        before = text[: self.at]
        line, column = before.count("\n") + 1, self.at - (before.rfind("\n") + 1)
        source = text.split("\n")[line - 1]
        return f"ERROR: <input>:{line}:{column + 1}: {self}\n | {source}\n | {'.' * column}^"


@dataclass(frozen=True, slots=True)
class LiteralExpression:
    """A literal."""

    at: int
    value: Any


@dataclass(frozen=True, slots=True)
class IdentifierExpression:
    """A variable, or the start of a qualified function name."""

    at: int
    name: str


@dataclass(frozen=True, slots=True)
class SelectExpression:
    """`operand.field`; optional: `operand.?field`."""

    at: int
    operand: Expression
    field: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class IndexExpression:
    """`operand[key]`; optional: `operand[?key]`."""

    at: int
    operand: Expression
    key: Expression
    optional: bool = False


@dataclass(frozen=True, slots=True)
class CallExpression:
    """`target.name(args)`, `name(args)`, or an operator by its function name, such as `_+_`."""

    at: int
    name: str
    target: Expression | None
    args: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class ListExpression:
    """`[a, b]`; `[?a]` contains the value of an optional, if it has one."""

    at: int
    items: tuple[Expression, ...]
    optional: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class MapExpression:
    """`{key: value}`; `{?key: value}` contains the value of an optional, if it has one."""

    at: int
    entries: tuple[tuple[Expression, Expression], ...]
    optional: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class StructExpression:
    """A struct of a named type: `Object.spec{replicas: 3}`."""

    at: int
    name: str
    fields: tuple[tuple[str, Expression], ...]
    optional: tuple[bool, ...]


Expression: TypeAlias = (
    LiteralExpression
    | IdentifierExpression
    | SelectExpression
    | IndexExpression
    | CallExpression
    | ListExpression
    | MapExpression
    | StructExpression
)


def child_expressions(node: Expression) -> tuple[Expression, ...]:
    """Return the direct subexpressions of an expression."""
    match node:
        case SelectExpression():
            return (node.operand,)
        case IndexExpression():
            return (node.operand, node.key)
        case CallExpression():
            return (*((node.target,) if node.target else ()), *node.args)
        case ListExpression():
            return node.items
        case MapExpression():
            return tuple(part for entry in node.entries for part in entry)
        case StructExpression():
            return tuple(value for _, value in node.fields)
    return ()


class Token(NamedTuple):
    """A token; its kind is "literal", "name", "end" or the operator itself."""

    at: int
    kind: str
    text: str
    value: Any = None


_TOKEN = re.compile(
    r"""
    (?P<space>(?:[ \t\r\n\f]+|//[^\n]*)+)
  | (?P<text>(?P<prefix>[rR]?[bB]?|[bB][rR])(?:'{3}(?s:.*?)(?<!\\)(?:\\\\)*'{3}
        |"{3}(?s:.*?)(?<!\\)(?:\\\\)*"{3}|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"))
  | (?P<float>(?:\d+\.\d+|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
  | (?P<int>0[xX][0-9a-fA-F]+|\d+)(?P<unsigned>[uU]?)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<sign>&&|\|\||[<>=!]=|[-+*/%!<>?:.,()\[\]{}])
    """,
    re.VERBOSE,
)
_RAW_STRING = re.compile(r"(?P<prefix>[rR])(?P<quote>'{3}|\"{3}|'|\")(?P<inner>(?s:.*?))(?P=quote)")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|X([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})"
                     r"|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL)  # fmt: skip
_SIMPLE_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "`": "`", "?": "?",
}  # fmt: skip
_MAX_DIGITS = 1000
_LITERAL_WORDS = {"true": True, "false": False, "null": None}
#: Identifiers that CEL reserves.
RESERVED_WORDS = frozenset((
    "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop",
    "package", "namespace", "return", "var", "void", "while",
))  # fmt: skip


def tokenize(text: str) -> Iterator[Token]:
    """Split an expression into tokens; the last one is the end."""
    at = 0
    while at < len(text):
        match = _RAW_STRING.match(text, at) or _TOKEN.match(text, at)
        if match is None:
            raise BadExpression(at, f"Syntax error: token recognition error at: '{text[at]}'")
        if token := _make_token(match, at):
            yield token
        at = match.end()
    yield Token(len(text), "end", "<EOF>")


def _make_token(match: re.Match[str], at: int) -> Token | None:
    found, whole = match.groupdict(), match[0]
    if found.get("quote"):
        return Token(at, "literal", whole, found["inner"])
    if found["space"]:
        return None
    if found["text"]:
        return Token(at, "literal", whole, _unquote(whole, found["prefix"].lower(), at))
    if found["float"]:
        return Token(at, "literal", whole, float(whole))
    if found["int"]:
        return Token(
            at, "literal", whole, _parse_integer(found["int"], bool(found["unsigned"]), at)
        )
    if whole in _LITERAL_WORDS:
        return Token(at, "literal", whole, _LITERAL_WORDS[whole])
    if found["name"] and whole != "in":
        return Token(at, "name", whole)
    return Token(at, whole, whole)


def _parse_integer(text: str, unsigned: bool, at: int) -> int:
    # Python refuses to convert thousands of digits; so many overflow in any case.
    value = UINT_LIMIT
    if len(text) <= _MAX_DIGITS:
        value = int(text, 0) if text[:2] in ("0x", "0X") else int(text)
    # One more than the largest int: the smallest int is written with a minus.
    if value >= (UINT_LIMIT if unsigned else INT_LIMIT + 1):
        raise BadExpression(at, "invalid uint literal" if unsigned else "invalid int literal")
    return Uint(value) if unsigned else value


def _unquote(text: str, prefix: str, at: int) -> str | bytes:
    quoted = text[len(prefix) :]
    width = 3 if quoted[:3] in ("'''", '"""') else 1
    inner = quoted[width:-width]
    if "r" in prefix:
        return inner.encode() if "b" in prefix else inner
    if "b" not in prefix:
        return _ESCAPE.sub(lambda match: _unescape_character(match, at), inner)
    return _unescape_bytes(inner, at)


def _unescape_bytes(inner: str, at: int) -> bytes:
    """Unescape a bytes literal, in which `\\xff` is one byte."""
    parts: list[bytes] = []
    last = 0
    for match in _ESCAPE.finditer(inner):
        parts.append(inner[last : match.start()].encode())
        if match[3] or match[4]:
            raise BadExpression(at, "Syntax error: unable to unescape string: \\u in bytes")
        code, octal = match[1] or match[2], match[5]
        number = int(code, 16) if code else int(octal, 8) if octal else None
        parts.append(_unescape_character(match, at).encode() if number is None else bytes([number]))
        last = match.end()
    return b"".join((*parts, inner[last:].encode()))


def _unescape_character(match: re.Match[str], at: int) -> str:
    *codes, octal, plain = match.groups()
    code = next((code for code in codes if code), None)
    if plain is not None:
        if plain not in _SIMPLE_ESCAPES:
            raise BadExpression(at, f"Syntax error: unable to unescape string: \\{plain}")
        return _SIMPLE_ESCAPES[plain]
    number = int(code, 16) if code else int(octal, 8)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise BadExpression(at, "Syntax error: unable to unescape string: invalid code point")
    return chr(number)


T = TypeVar("T")

#: Limits: nesting of an expression, depth of its tree, number of its tokens.
MAX_NESTED, MAX_DEPTH, MAX_TOKENS = 40, 100, 20_000
#: The length of an expression, as in Kubernetes.
MAX_CODE_POINTS = 100_000

_PRECEDENCE: tuple[dict[str, str], ...] = (
    {"||": "_||_"},
    {"&&": "_&&_"},
    {"<": "_<_", "<=": "_<=_", ">": "_>_", ">=": "_>=_", "==": "_==_", "!=": "_!=_", "in": "@in"},
    {"+": "_+_", "-": "_-_"},
    {"*": "_*_", "/": "_/_", "%": "_%_"},
)
#: Operator -> its precedence and the name of its function.
_OPERATORS = {
    sign: (rank, name) for rank, row in enumerate(_PRECEDENCE) for sign, name in row.items()
}
_LOGICAL = ("_||_", "_&&_")


def parse(text: str) -> Expression:
    """Parse an expression. Raises BadExpression."""
    node = _Parser(text).parse()
    todo = [(node, 1)]
    for one, depth in todo:
        if depth > MAX_DEPTH:
            raise _too_deep(one.at)
        todo += [(part, depth + 1) for part in child_expressions(one)]
    return node


def _too_deep(at: int) -> BadExpression:
    return BadExpression(at, f"expression recursion limit exceeded: {MAX_DEPTH}")


def _balance(name: str, operands: list[Expression], signs: list[int]) -> Expression:
    """Arrange a chain of one logical operator as a tree of minimal depth."""
    if len(operands) == 1:
        return operands[0]
    half = len(operands) // 2
    left = _balance(name, operands[:half], signs[: half - 1])
    right = _balance(name, operands[half:], signs[half:])
    return CallExpression(signs[half - 1], name, None, (left, right))


def _struct_name(node: Expression) -> str:
    """Return the dotted name that an expression spells, or ""."""
    match node:
        case IdentifierExpression():
            return node.name
        case SelectExpression(optional=False):
            before = _struct_name(node.operand)
            return before and f"{before}.{node.field}"
    return ""


class _Parser:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_CODE_POINTS:
            raise BadExpression(0, "expression code point size exceeds limit")
        self._tokens: list[Token] = []
        for token in tokenize(text):
            self._tokens.append(token)
            if len(self._tokens) > MAX_TOKENS:
                raise BadExpression(token.at, "expression code point size exceeds limit")
        self._position = self._nesting = 0

    def parse(self) -> Expression:
        node = self._parse_expression()
        self._expect("end")
        return node

    @property
    def _current(self) -> Token:
        return self._tokens[self._position]

    def _peek(self, *sorts: str) -> bool:
        return self._current.kind in sorts

    def _expect(self, sort: str) -> Token:
        token = self._current
        if token.kind != sort:
            wanted = {"end": "<EOF>", "name": "IDENTIFIER"}.get(sort, f"'{sort}'")
            what = f"Syntax error: mismatched input '{token.text}' expecting {wanted}"
            raise BadExpression(token.at, what)
        self._position += 1
        return token

    def _accept(self, sort: str) -> Token | None:
        return self._expect(sort) if self._peek(sort) else None

    def _parse_expression(self) -> Expression:
        self._nesting += 1
        if self._nesting > MAX_NESTED:
            raise _too_deep(self._current.at)
        node = self._parse_binary(0)
        if sign := self._accept("?"):
            yes = self._parse_binary(0)
            self._expect(":")
            node = CallExpression(sign.at, "_?_:_", None, (node, yes, self._parse_expression()))
        self._nesting -= 1
        return node

    def _parse_binary(self, lowest: int) -> Expression:
        """Parse operands and the operators of at least one precedence between them.

        Operators of the same precedence are left-associative.
        """
        node = self._parse_unary()
        while self._current.kind in _OPERATORS:
            rank, name = _OPERATORS[self._current.kind]
            if rank < lowest:
                break
            if name in _LOGICAL:
                node = self._parse_logical(node, rank, name)
            else:
                sign = self._expect(self._current.kind)
                node = CallExpression(sign.at, name, None, (node, self._parse_binary(rank + 1)))
        return node

    def _parse_logical(self, first: Expression, rank: int, name: str) -> Expression:
        operands, signs, sort = [first], list[int](), self._current.kind
        while self._peek(sort):
            signs.append(self._expect(sort).at)
            operands.append(self._parse_binary(rank + 1))
        return _balance(name, operands, signs)

    def _parse_unary(self) -> Expression:
        signs: list[Token] = []
        while self._peek("!", "-"):
            signs.append(self._expect(self._current.kind))
        minus_literal = signs and signs[-1].kind == "-" and self._peek("literal")
        node = self._parse_negative(signs.pop()) if minus_literal else self._parse_member()
        for sign in reversed(signs):
            node = CallExpression(sign.at, f"{sign.kind}_", None, (node,))
        return node

    def _parse_negative(self, sign: Token) -> Expression:
        """Parse a negative number as one literal: the smallest int has no other notation."""
        token = self._current
        if token.value.__class__ not in (int, float):
            return CallExpression(sign.at, "-_", None, (self._parse_member(),))
        self._tokens[self._position] = token._replace(at=sign.at, value=-token.value)
        return self._parse_member()

    def _parse_member(self) -> Expression:
        node = self._parse_primary()
        while True:
            if sign := self._accept("."):
                node = self._parse_select(node, sign)
            elif sign := self._accept("["):
                optional = self._accept("?") is not None
                node = IndexExpression(sign.at, node, self._parse_expression(), optional)
                self._expect("]")
            elif self._peek("{") and (name := _struct_name(node)):
                opening = self._expect("{")
                entries = self._parse_separated("}", self._parse_field)
                fields = tuple((field, value) for _, field, value in entries)
                are_optional = tuple(is_optional for is_optional, _, _ in entries)
                node = StructExpression(opening.at, name, fields, are_optional)
            else:
                return node

    def _parse_select(self, of: Expression, sign: Token) -> Expression:
        optional = self._accept("?") is not None
        name = self._expect("name")
        if not optional and (opening := self._accept("(")):
            return CallExpression(opening.at, name.text, of, self._parse_arguments(")"))
        return SelectExpression(sign.at, of, name.text, optional)

    def _parse_primary(self) -> Expression:
        token = self._current
        match token.kind:
            case "literal":
                return self._parse_literal(self._expect("literal"))
            case "(":
                self._expect("(")
                node = self._parse_expression()
                self._expect(")")
                return node
            case "[":
                return self._parse_list(self._expect("["))
            case "{":
                return self._parse_map(self._expect("{"))
        self._accept(".")
        return self._parse_identifier(self._expect("name"))

    def _parse_literal(self, token: Token) -> Expression:
        if token.value.__class__ is int and token.value >= INT_LIMIT:
            raise BadExpression(token.at, "invalid int literal")
        return LiteralExpression(token.at, token.value)

    def _parse_identifier(self, name: Token) -> Expression:
        if opening := self._accept("("):
            return CallExpression(opening.at, name.text, None, self._parse_arguments(")"))
        if name.text in RESERVED_WORDS:
            raise BadExpression(name.at, f"reserved identifier: {name.text}")
        return IdentifierExpression(name.at, name.text)

    def _parse_arguments(self, closing: str) -> tuple[Expression, ...]:
        return self._parse_separated(closing, self._parse_expression)

    def _parse_separated(self, closing: str, one: Callable[[], T]) -> tuple[T, ...]:
        found: list[T] = []
        while not self._peek(closing):
            found.append(one())
            # Lists and maps may end with a comma, arguments may not.
            if not self._accept(",") or (closing != ")" and self._peek(closing)):
                break
        self._expect(closing)
        return tuple(found)

    def _parse_list(self, opening: Token) -> Expression:
        pairs = self._parse_separated(
            "]", lambda: (self._accept("?") is not None, self._parse_expression())
        )
        return ListExpression(opening.at, tuple(n for _, n in pairs), tuple(o for o, _ in pairs))

    def _parse_map(self, opening: Token) -> Expression:
        entries = self._parse_separated("}", self._parse_map_entry)
        pairs = tuple((key, value) for _, key, value in entries)
        return MapExpression(opening.at, pairs, tuple(optional for optional, _, _ in entries))

    def _parse_field(self) -> tuple[bool, str, Expression]:
        optional, field = self._accept("?") is not None, self._expect("name").text
        self._expect(":")
        return optional, field, self._parse_expression()

    def _parse_map_entry(self) -> tuple[bool, Expression, Expression]:
        optional, key = self._accept("?") is not None, self._parse_expression()
        self._expect(":")
        return optional, key, self._parse_expression()
