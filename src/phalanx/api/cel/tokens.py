"""The words of an expression: numbers, texts, names and signs, each with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from phalanx.api.cel.nodes import BadExpression
from phalanx.api.cel.values import INT, UINT, Uint


class Token(NamedTuple):
    """`sort` is "literal", "name", "end" or the sign itself."""

    at: int
    sort: str
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
_RAW = re.compile(r"(?P<prefix>[rR])(?P<quote>'{3}|\"{3}|'|\")(?P<inner>(?s:.*?))(?P=quote)")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|X([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})"
                     r"|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL)  # fmt: skip
_PLAIN = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "`": "`", "?": "?",
}  # fmt: skip
_WORDS = {"true": True, "false": False, "null": None}
#: Names that the language keeps for itself.
RESERVED = frozenset((
    "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop",
    "package", "namespace", "return", "var", "void", "while",
))  # fmt: skip


def tokens(text: str) -> Iterator[Token]:
    """The words of an expression and, last, its end."""
    at = 0
    while at < len(text):
        match = _RAW.match(text, at) or _TOKEN.match(text, at)
        if match is None:
            raise BadExpression(at, f"Syntax error: token recognition error at: '{text[at]}'")
        if token := _token(match, at):
            yield token
        at = match.end()
    yield Token(len(text), "end", "<EOF>")


def _token(match: re.Match[str], at: int) -> Token | None:
    found, whole = match.groupdict(), match[0]
    if found.get("quote"):
        return Token(at, "literal", whole, found["inner"])
    if found["space"]:
        return None
    if found["text"]:
        return Token(at, "literal", whole, _unquoted(whole, found["prefix"].lower(), at))
    if found["float"]:
        return Token(at, "literal", whole, float(whole))
    if found["int"]:
        return Token(at, "literal", whole, _integer(found["int"], bool(found["unsigned"]), at))
    if whole in _WORDS:
        return Token(at, "literal", whole, _WORDS[whole])
    if found["name"] and whole != "in":
        return Token(at, "name", whole)
    return Token(at, whole, whole)


def _integer(text: str, unsigned: bool, at: int) -> int:
    value = int(text, 0) if text[:2] in ("0x", "0X") else int(text)
    # One more than the largest, for the smallest stands behind a minus.
    if value >= (UINT if unsigned else INT + 1):
        raise BadExpression(at, "invalid uint literal" if unsigned else "invalid int literal")
    return Uint(value) if unsigned else value


def _unquoted(text: str, prefix: str, at: int) -> str | bytes:
    quoted = text[len(prefix) :]
    width = 3 if quoted[:3] in ("'''", '"""') else 1
    inner = quoted[width:-width]
    if "r" in prefix:
        return inner.encode() if "b" in prefix else inner
    if "b" not in prefix:
        return _ESCAPE.sub(lambda match: _character(match, at), inner)
    return _bytes(inner, at)


def _bytes(inner: str, at: int) -> bytes:
    """In bytes `\\xff` is one byte, not the two of the character."""
    parts: list[bytes] = []
    last = 0
    for match in _ESCAPE.finditer(inner):
        parts.append(inner[last : match.start()].encode())
        if match[3] or match[4]:
            raise BadExpression(at, "Syntax error: unable to unescape string: \\u in bytes")
        code, octal = match[1] or match[2], match[5]
        number = int(code, 16) if code else int(octal, 8) if octal else None
        parts.append(_character(match, at).encode() if number is None else bytes([number]))
        last = match.end()
    return b"".join((*parts, inner[last:].encode()))


def _character(match: re.Match[str], at: int) -> str:
    *codes, octal, plain = match.groups()
    code = next((code for code in codes if code), None)
    if plain is not None:
        if plain not in _PLAIN:
            raise BadExpression(at, f"Syntax error: unable to unescape string: \\{plain}")
        return _PLAIN[plain]
    return _chr(int(code, 16) if code else int(octal, 8), at)


def _chr(number: int, at: int) -> str:
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise BadExpression(at, "Syntax error: unable to unescape string: invalid code point")
    return chr(number)
