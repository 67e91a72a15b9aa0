"""The syntax of regular expressions: from the text of a pattern to its parts.

That of Go (RE2), without what it lacks: no look-around, no back-references. Read by `regex.py`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

#: A part may be repeated so often, and groups may stand so deep in groups.
MAX_REPEAT, MAX_DEPTH = 1000, 100

#: What one character must be, and what the characters on both sides of a place must be.
Test = Callable[[str], bool]
Holds = Callable[[str, str], bool]


class BadPattern(ValueError):
    """The text is no regular expression."""


def read(text: str) -> Node:
    """The parts of a pattern. Raises BadPattern."""
    return _Reader(text).read()


# ------------------------------------------------------------------------------------------- parts


@dataclass(frozen=True, slots=True)
class One:
    """A character that passes a test."""

    test: Test


@dataclass(frozen=True, slots=True)
class Edge:
    """A place between two characters, "" beyond either end of the text."""

    holds: Holds


@dataclass(frozen=True, slots=True)
class Row:
    """One part after another."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One part or another."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part so many times, the more the better, or the fewer; `high` None is without end."""

    part: Node
    low: int
    high: int | None
    few: bool = False


Node = One | Edge | Row | Choice | Repeat

# ------------------------------------------------------------------------------------ tests, edges

_WORD = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")
_POSIX = {
    "alnum": "[0-9A-Za-z]", "alpha": "[A-Za-z]", "ascii": r"[\x00-\x7f]", "blank": "[\t ]",
    "cntrl": r"[\x00-\x1f\x7f]", "digit": "[0-9]", "graph": "[!-~]", "lower": "[a-z]",
    "print": "[ -~]", "punct": r"[!-/:-@\[-`{-~]", "space": "[\t\n\v\f\r ]", "upper": "[A-Z]",
    "word": "[0-9A-Za-z_]", "xdigit": "[0-9A-Fa-f]",
}  # fmt: skip
_CONTROLS = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_CATEGORIES = (
    "Cc", "Cf", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl", "No", "Pc",
    "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs",
)  # fmt: skip


def is_word(char: str) -> bool:
    """Whether it is a letter, a digit or an underscore; "", beyond the end, is none."""
    return char in _WORD


def _between_words(before: str, after: str) -> bool:
    return is_word(before) != is_word(after)


def _not_between_words(before: str, after: str) -> bool:
    return is_word(before) == is_word(after)


_PERL: dict[str, Test] = {
    "d": lambda char: "0" <= char <= "9",
    "s": lambda char: char in "\t\n\f\r ",
    "w": is_word,
}
_EDGES: dict[str, Holds] = {
    "A": lambda before, after: not before,
    "z": lambda before, after: not after,
    "b": _between_words,
    "B": _not_between_words,
}
_LINE_EDGES: dict[str, Holds] = {
    "^": lambda before, after: before in ("", "\n"),
    "$": lambda before, after: after in ("", "\n"),
}


def _not(test: Test) -> Test:
    return lambda char: not test(char)


def _any(tests: Iterable[Test]) -> Test:
    each = tuple(tests)
    return lambda char: any(test(char) for test in each)


def _span(low: str, high: str) -> Test:
    return lambda char: low <= char <= high


def _of(posix: str, *, negated: bool) -> Test:
    match = re.compile(posix).fullmatch
    return lambda char: bool(match(char)) != negated


def _in_any_case(test: Test) -> Test:
    return lambda char: test(char) or test(char.lower()) or test(char.upper())


# ----------------------------------------------------------------------------------------- reading


class _Reader:
    """A recursive-descent reader of patterns."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._flags, self._depth = "", 0

    def read(self) -> Node:
        node = self._choice()
        if self._more():
            self._fail("unexpected )")
        return node

    def _more(self) -> bool:
        return self._at < len(self._text)

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _skip(self, text: str) -> bool:
        if not self._peek(text):
            return False
        self._at += len(text)
        return True

    def _take(self) -> str:
        if not self._more():
            self._fail("trailing backslash at end of expression")
        self._at += 1
        return self._text[self._at - 1]

    def _until(self, end: str, complaint: str) -> str:
        stop = self._text.find(end, self._at)
        if stop < 0:
            self._fail(complaint)
        found, self._at = self._text[self._at : stop], stop + len(end)
        return found

    def _fail(self, complaint: str) -> NoReturn:
        raise BadPattern(f"error parsing regexp: {complaint}: `{self._text}`")

    def _choice(self) -> Node:
        parts = [self._row()]
        while self._skip("|"):
            parts.append(self._row())
        return Choice(tuple(parts)) if len(parts) > 1 else parts[0]

    def _row(self) -> Node:
        parts: list[Node] = []
        while self._more() and not self._peek("|") and not self._peek(")"):
            if self._skip("\\Q"):
                end = self._text.find("\\E", self._at)
                text = self._text[self._at : end if end >= 0 else None]
                self._at += len(text) + (2 if end >= 0 else 0)
                parts += [self._literal(char) for char in text]
            else:
                parts.append(self._atom())
            if parts:
                parts[-1] = self._repeated(parts[-1])
        return Row(tuple(parts))

    def _repeated(self, part: Node) -> Node:
        counts = self._counts()
        if counts is None:
            return part
        low, high = counts
        if low > MAX_REPEAT or (high or 0) > MAX_REPEAT or (high is not None and high < low):
            self._fail("invalid repeat count")
        few = self._skip("?")
        if self._counts() is not None:
            self._fail("invalid nested repetition operator")
        return Repeat(part, low, high, few)

    def _counts(self) -> tuple[int, int | None] | None:
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._skip(sign):
                return counts
        found = re.compile(r"\{(\d+)(,(\d*))?\}").match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        low = int(found[1][:9])
        if not found[2]:
            return low, low
        return low, int(found[3][:9]) if found[3] else None

    def _atom(self) -> Node:
        char = self._take()
        if char == "(":
            return self._group()
        if char == "[":
            return One(self._cased(self._class()))
        if char == ".":
            return One(lambda c: True) if "s" in self._flags else One(lambda c: c != "\n")
        if char in "^$":
            edges = _LINE_EDGES if "m" in self._flags else {"^": _EDGES["A"], "$": _EDGES["z"]}
            return Edge(edges[char])
        if char in "*+?":
            self._fail(f"missing argument to repetition operator: `{char}`")
        return self._escape() if char == "\\" else self._literal(char)

    def _literal(self, char: str) -> Node:
        return One(self._cased(char.__eq__))

    def _cased(self, test: Test) -> Test:
        return _in_any_case(test) if "i" in self._flags else test

    def _group(self) -> Node:
        flags = self._flags
        if self._skip("?P<") or self._skip("?<"):
            if not re.fullmatch(r"\w+", self._until(">", "invalid named capture")):
                self._fail("invalid named capture")
        elif self._skip("?"):
            said = re.compile(r"([imsU]*)(-[imsU]+)?([:)])").match(self._text, self._at)
            if said is None:
                self._fail("invalid or unsupported Perl syntax")
            self._at = said.end()
            less = said[2] or ""
            self._flags = "".join(f for f in flags + said[1] if f not in less)
            if said[3] == ")":
                return Row(())
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail("expression nests too deeply")
        node = self._choice()
        if not self._skip(")"):
            self._fail("missing closing )")
        self._flags, self._depth = flags, self._depth - 1
        return node

    def _escape(self) -> Node:
        char = self._take()
        if char in _EDGES:
            return Edge(_EDGES[char])
        return One(self._cased(self._escaped(char)))

    def _escaped(self, char: str) -> Test:
        """What a backslash and a character stand for, inside a class and out of it."""
        if char.lower() in _PERL:
            return _PERL[char] if char in _PERL else _not(_PERL[char.lower()])
        if char in "pP":
            test = self._category()
            return _not(test) if char == "P" else test
        return self._character(char).__eq__

    def _character(self, char: str) -> str:
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "x":
            digits = self._braced() if self._peek("{") else self._take() + self._take()
            return self._coded(digits, 16)
        if char in "01234567":
            found = re.compile(r"[0-7]{0,2}").match(self._text, self._at)
            more = found[0] if found else ""
            self._at += len(more)
            return self._coded(char + more if more or char == "0" else "", 8)
        if char.isascii() and char.isalnum():
            self._fail(f"invalid escape sequence `\\{char}`")
        return char

    def _braced(self) -> str:
        self._skip("{")
        return self._until("}", "missing closing }")

    def _coded(self, digits: str, radix: int) -> str:
        try:
            return chr(int(digits, radix))
        except (ValueError, OverflowError):
            self._fail("invalid escape sequence")

    def _category(self) -> Test:
        name = self._braced() if self._peek("{") else self._take()
        wanted = name.removeprefix("^")
        if not wanted or not any(known.startswith(wanted) for known in _CATEGORIES):
            self._fail(f"invalid character class range `\\p{{{name}}}`")

        def test(char: str) -> bool:
            return unicodedata.category(char).startswith(wanted)

        return _not(test) if name.startswith("^") else test

    def _class(self) -> Test:
        negated = self._skip("^")
        tests: list[Test] = []
        while not (tests and self._skip("]")):
            if not self._more():
                self._fail("missing closing ]")
            tests.append(self._member())
        return _not(_any(tests)) if negated else _any(tests)

    def _member(self) -> Test:
        if self._skip("[:"):
            name = self._until(":]", "invalid character class range")
            known = _POSIX.get(name.removeprefix("^"))
            if known is None:
                self._fail(f"invalid character class range: `[:{name}:]`")
            return _of(known, negated=name.startswith("^"))
        char = self._take()
        if char == "\\":
            char = self._take()
            if char.lower() in _PERL or char in "pP":
                return self._escaped(char)
            char = self._character(char)
        if not self._peek("-") or self._peek("-]"):
            return char.__eq__
        self._take()
        last = self._take()
        last = self._character(self._take()) if last == "\\" else last
        if last < char:
            self._fail(f"invalid character class range: `{char}-{last}`")
        return _span(char, last)
