r"""Regular expressions in the syntax of Go's regexp package, matched in linear time by RE2.

CustomResourceDefinitions, CEL rules and JobSets contain patterns; the texts come from API clients.
RE2 never backtracks, so no pattern takes exponential time. This module adds what the API server
needs around RE2: Go's error messages, the refusal of syntax that RE2 has and Go has not, and a
bound on the work for one text.

    compile_pattern("^a+b$").matches("aab")              True
    list(compile_pattern("a|ab").find_all("xab-a"))      [(1, 2), (4, 5)]
    compile_pattern("a**")                               raises BadPattern: error parsing regexp:
                                                         invalid nested repetition operator: `**`
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

#: RE2's memory for one pattern in bytes: its instructions and its DFA states. The second is for
#: patterns that do not compile in the first: `\p{L}{1,255}` has 300,000 instructions.
PATTERN_MEMORY = (8 << 20, 64 << 20)
#: RE2's worst case is instructions times characters; a billion takes about a second. A longer text
#: does not match, unless it has fewer characters than the second.
MAX_WORK, MIN_TEXT_LIMIT = 1_000_000_000, 1 << 16

_TOO_LARGE = "pattern too large - compile failed"
#: RE2's error codes in the words of Go's regexp/syntax.
_GO_MESSAGES = {
    "missing ]": "missing closing ]",
    "missing )": "missing closing )",
    "trailing \\": "trailing backslash at end of expression",
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid repetition size": "invalid repeat count",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
    _TOO_LARGE: "expression too large",
}
#: `\C`, one byte of a character: RE2 has it, Go refuses it.
_BYTE_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\C")
_SURROGATE = re.compile("[\ud800-\udfff]")


class BadPattern(ValueError):
    """Go's regexp package refuses the pattern; the message is Go's."""


@lru_cache(maxsize=128)
def compile_pattern(text: str) -> Pattern:
    """Return the compiled pattern. Raises BadPattern."""
    return Pattern(text)


class Pattern:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        if _BYTE_ESCAPE.search(text):
            raise BadPattern(_go_message("invalid escape sequence: \\C"))
        if _SURROGATE.search(text):
            raise BadPattern(_go_message(f"invalid UTF-8: {text!a}"))
        self._compiled = _compile(text)
        self._text_limit = max(MIN_TEXT_LIMIT, MAX_WORK // self._compiled.programsize)

    def matches(self, text: str) -> bool:
        """Whether any part of a text matches."""
        return next(self.find_all(text), None) is not None

    def find_all(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield begin and end of successive matches, as Go's FindAllStringIndex returns them.

        An empty match right after another match does not count.
        """
        if len(text) > self._text_limit:
            return
        last_end = -1
        for match in self._compiled.finditer(_SURROGATE.sub("\ufffd", text)):
            begin, end = match.span()
            if end > begin or begin != last_end:
                yield begin, end
            last_end = end


def _compile(text: str) -> Any:
    # Imported with the first pattern: most control planes have none.
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors, options.never_capture = False, True
    message = ""
    for options.max_mem in PATTERN_MEMORY:
        try:
            return re2.compile(text, options)
        except re2.error as error:
            message = error.args[0].decode(errors="replace")
            if message != _TOO_LARGE:
                break
    raise BadPattern(_go_message(message))


def _go_message(message: str) -> str:
    code, _, part = message.partition(": ")
    return f"error parsing regexp: {_GO_MESSAGES.get(code, code)}: `{part}`"
