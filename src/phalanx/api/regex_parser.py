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
CharTest = Callable[[str], bool]
PositionTest = Callable[[str, str], bool]


class BadPattern(ValueError):
    """The text is no regular expression."""


def parse_pattern(text: str) -> RegexNode:
    """The parts of a pattern. Raises BadPattern."""
    return _PatternParser(text).parse()


# ------------------------------------------------------------------------------------------- parts


@dataclass(frozen=True, slots=True)
class CharNode:
    """A character that passes a test."""

    test: CharTest


@dataclass(frozen=True, slots=True)
class AssertionNode:
    """A place between two characters, "" beyond either end of the text."""

    test: PositionTest


@dataclass(frozen=True, slots=True)
class SequenceNode:
    """One part after another."""

    parts: tuple[RegexNode, ...]


@dataclass(frozen=True, slots=True)
class AlternationNode:
    """One part or another."""

    parts: tuple[RegexNode, ...]


@dataclass(frozen=True, slots=True)
class RepeatNode:
    """A part so many times, the more the better, or the fewer; `high` None is without end."""

    part: RegexNode
    min_count: int
    max_count: int | None
    is_lazy: bool = False


RegexNode = CharNode | AssertionNode | SequenceNode | AlternationNode | RepeatNode

# ------------------------------------------------------------------------------------ tests, edges

_WORD_CHARS = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")
_POSIX_CLASSES = {
    "alnum": "[0-9A-Za-z]", "alpha": "[A-Za-z]", "ascii": r"[\x00-\x7f]", "blank": "[\t ]",
    "cntrl": r"[\x00-\x1f\x7f]", "digit": "[0-9]", "graph": "[!-~]", "lower": "[a-z]",
    "print": "[ -~]", "punct": r"[!-/:-@\[-`{-~]", "space": "[\t\n\v\f\r ]", "upper": "[A-Z]",
    "word": "[0-9A-Za-z_]", "xdigit": "[0-9A-Fa-f]",
}  # fmt: skip
_CONTROL_ESCAPES = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_CATEGORIES = (
    "Cc", "Cf", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl", "No", "Pc",
    "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs",
)  # fmt: skip


def is_word_char(char: str) -> bool:
    """Whether it is a letter, a digit or an underscore; "", beyond the end, is none."""
    return char in _WORD_CHARS


def _is_word_boundary(before: str, after: str) -> bool:
    return is_word_char(before) != is_word_char(after)


def _is_no_word_boundary(before: str, after: str) -> bool:
    return is_word_char(before) == is_word_char(after)


_PERL_CLASSES: dict[str, CharTest] = {
    "d": lambda char: "0" <= char <= "9",
    "s": lambda char: char in "\t\n\f\r ",
    "w": is_word_char,
}
_ASSERTIONS: dict[str, PositionTest] = {
    "A": lambda before, after: not before,
    "z": lambda before, after: not after,
    "b": _is_word_boundary,
    "B": _is_no_word_boundary,
}
_LINE_ASSERTIONS: dict[str, PositionTest] = {
    "^": lambda before, after: before in ("", "\n"),
    "$": lambda before, after: after in ("", "\n"),
}


def _negate(test: CharTest) -> CharTest:
    return lambda char: not test(char)


def _any_of(tests: Iterable[CharTest]) -> CharTest:
    each = tuple(tests)
    return lambda char: any(test(char) for test in each)


def _in_range(low: str, high: str) -> CharTest:
    return lambda char: low <= char <= high


def _in_posix_class(posix: str, *, negated: bool) -> CharTest:
    match = re.compile(posix).fullmatch
    return lambda char: bool(match(char)) != negated


def _ignore_case(test: CharTest) -> CharTest:
    return lambda char: test(char) or test(char.lower()) or test(char.upper())


# ----------------------------------------------------------------------------------------- reading


class _PatternParser:
    """A recursive-descent reader of patterns."""

    def __init__(self, text: str) -> None:
        self._text, self._position = text, 0
        self._flags, self._depth = "", 0

    def parse(self) -> RegexNode:
        node = self._parse_alternation()
        if self._has_more():
            self._fail("unexpected )")
        return node

    def _has_more(self) -> bool:
        return self._position < len(self._text)

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._position)

    def _skip(self, text: str) -> bool:
        if not self._peek(text):
            return False
        self._position += len(text)
        return True

    def _next(self) -> str:
        if not self._has_more():
            self._fail("trailing backslash at end of expression")
        self._position += 1
        return self._text[self._position - 1]

    def _read_until(self, end: str, message: str) -> str:
        stop = self._text.find(end, self._position)
        if stop < 0:
            self._fail(message)
        found, self._position = self._text[self._position : stop], stop + len(end)
        return found

    def _fail(self, message: str) -> NoReturn:
        raise BadPattern(f"error parsing regexp: {message}: `{self._text}`")

    def _parse_alternation(self) -> RegexNode:
        parts = [self._parse_sequence()]
        while self._skip("|"):
            parts.append(self._parse_sequence())
        return AlternationNode(tuple(parts)) if len(parts) > 1 else parts[0]

    def _parse_sequence(self) -> RegexNode:
        parts: list[RegexNode] = []
        while self._has_more() and not self._peek("|") and not self._peek(")"):
            if self._skip("\\Q"):
                end = self._text.find("\\E", self._position)
                text = self._text[self._position : end if end >= 0 else None]
                self._position += len(text) + (2 if end >= 0 else 0)
                parts += [self._literal_node(char) for char in text]
            else:
                parts.append(self._parse_atom())
            if parts:
                parts[-1] = self._parse_repetition(parts[-1])
        return SequenceNode(tuple(parts))

    def _parse_repetition(self, part: RegexNode) -> RegexNode:
        counts = self._parse_counts()
        if counts is None:
            return part
        low, high = counts
        if low > MAX_REPEAT or (high or 0) > MAX_REPEAT or (high is not None and high < low):
            self._fail("invalid repeat count")
        few = self._skip("?")
        if self._parse_counts() is not None:
            self._fail("invalid nested repetition operator")
        return RepeatNode(part, low, high, few)

    def _parse_counts(self) -> tuple[int, int | None] | None:
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._skip(sign):
                return counts
        found = re.compile(r"\{(\d+)(,(\d*))?\}").match(self._text, self._position)
        if found is None:
            return None
        self._position = found.end()
        low = int(found[1][:9])
        if not found[2]:
            return low, low
        return low, int(found[3][:9]) if found[3] else None

    def _parse_atom(self) -> RegexNode:
        char = self._next()
        if char == "(":
            return self._parse_group()
        if char == "[":
            return CharNode(self._with_case_flag(self._parse_class()))
        if char == ".":
            return CharNode(lambda c: True) if "s" in self._flags else CharNode(lambda c: c != "\n")
        if char in "^$":
            edges = (
                _LINE_ASSERTIONS
                if "m" in self._flags
                else {"^": _ASSERTIONS["A"], "$": _ASSERTIONS["z"]}
            )
            return AssertionNode(edges[char])
        if char in "*+?":
            self._fail(f"missing argument to repetition operator: `{char}`")
        return self._parse_escape() if char == "\\" else self._literal_node(char)

    def _literal_node(self, char: str) -> RegexNode:
        return CharNode(self._with_case_flag(char.__eq__))

    def _with_case_flag(self, test: CharTest) -> CharTest:
        return _ignore_case(test) if "i" in self._flags else test

    def _parse_group(self) -> RegexNode:
        flags = self._flags
        if self._skip("?P<") or self._skip("?<"):
            if not re.fullmatch(r"\w+", self._read_until(">", "invalid named capture")):
                self._fail("invalid named capture")
        elif self._skip("?"):
            said = re.compile(r"([imsU]*)(-[imsU]+)?([:)])").match(self._text, self._position)
            if said is None:
                self._fail("invalid or unsupported Perl syntax")
            self._position = said.end()
            less = said[2] or ""
            self._flags = "".join(f for f in flags + said[1] if f not in less)
            if said[3] == ")":
                return SequenceNode(())
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail("expression nests too deeply")
        node = self._parse_alternation()
        if not self._skip(")"):
            self._fail("missing closing )")
        self._flags, self._depth = flags, self._depth - 1
        return node

    def _parse_escape(self) -> RegexNode:
        char = self._next()
        if char in _ASSERTIONS:
            return AssertionNode(_ASSERTIONS[char])
        return CharNode(self._with_case_flag(self._escape_test(char)))

    def _escape_test(self, char: str) -> CharTest:
        """What a backslash and a character stand for, inside a class and out of it."""
        if char.lower() in _PERL_CLASSES:
            return (
                _PERL_CLASSES[char]
                if char in _PERL_CLASSES
                else _negate(_PERL_CLASSES[char.lower()])
            )
        if char in "pP":
            test = self._parse_category()
            return _negate(test) if char == "P" else test
        return self._parse_escaped_char(char).__eq__

    def _parse_escaped_char(self, char: str) -> str:
        if char in _CONTROL_ESCAPES:
            return _CONTROL_ESCAPES[char]
        if char == "x":
            digits = self._parse_braced() if self._peek("{") else self._next() + self._next()
            return self._decode_char(digits, 16)
        if char in "01234567":
            found = re.compile(r"[0-7]{0,2}").match(self._text, self._position)
            more = found[0] if found else ""
            self._position += len(more)
            return self._decode_char(char + more if more or char == "0" else "", 8)
        if char.isascii() and char.isalnum():
            self._fail(f"invalid escape sequence `\\{char}`")
        return char

    def _parse_braced(self) -> str:
        self._skip("{")
        return self._read_until("}", "missing closing }")

    def _decode_char(self, digits: str, radix: int) -> str:
        try:
            return chr(int(digits, radix))
        except (ValueError, OverflowError):
            self._fail("invalid escape sequence")

    def _parse_category(self) -> CharTest:
        name = self._parse_braced() if self._peek("{") else self._next()
        wanted = name.removeprefix("^")
        if not wanted or not any(known.startswith(wanted) for known in _CATEGORIES):
            self._fail(f"invalid character class range `\\p{{{name}}}`")

        def test(char: str) -> bool:
            return unicodedata.category(char).startswith(wanted)

        return _negate(test) if name.startswith("^") else test

    def _parse_class(self) -> CharTest:
        negated = self._skip("^")
        tests: list[CharTest] = []
        while not (tests and self._skip("]")):
            if not self._has_more():
                self._fail("missing closing ]")
            tests.append(self._parse_class_member())
        return _negate(_any_of(tests)) if negated else _any_of(tests)

    def _parse_class_member(self) -> CharTest:
        if self._skip("[:"):
            name = self._read_until(":]", "invalid character class range")
            known = _POSIX_CLASSES.get(name.removeprefix("^"))
            if known is None:
                self._fail(f"invalid character class range: `[:{name}:]`")
            return _in_posix_class(known, negated=name.startswith("^"))
        char = self._next()
        if char == "\\":
            char = self._next()
            if char.lower() in _PERL_CLASSES or char in "pP":
                return self._escape_test(char)
            char = self._parse_escaped_char(char)
        if not self._peek("-") or self._peek("-]"):
            return char.__eq__
        self._next()
        last = self._next()
        last = self._parse_escaped_char(self._next()) if last == "\\" else last
        if last < char:
            self._fail(f"invalid character class range: `{char}-{last}`")
        return _in_range(char, last)
