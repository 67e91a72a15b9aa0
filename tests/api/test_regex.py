from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.regex import MIN_TEXT_LIMIT, BadPattern, Pattern, compile_pattern

SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("^a+b$", ["ab", "aaab"], ["b", "abc", "xab", ""]),
        ("a|b", ["xax", "b"], ["c", ""]),
        ("", ["", "anything"], []),
        (r"^(a|bc)*c{2,3}$", ["cc", "ccc", "abccc"], ["c", "bc", "cccc"]),
        (r"^x{2,}y{0}$", ["xx", "xxx"], ["x", "xxy"]),
        (SUBDOMAIN, ["a", "a-b.c", "x.y.z"], ["-a", "a-", "a..b", "A"]),
        (r"^\d{1,3}(\.\d{1,3}){3}$", ["10.0.0.1"], ["10.0.0", "10.0.0.1000", "\u0661.1.1.1"]),
        (r"\bfoo\b", ["foo", "a foo.", "foo-bar"], ["food", "xfoo", "_foo"]),
        (r"\Boo", ["foo"], ["oo", "x oo"]),
        (r"(?i)abc", ["ABC", "xaBcx"], ["ab"]),
        (r"a(?i:b)c", ["aBc", "abc"], ["ABC", "aBC"]),
        (r"^.$", ["a", "é"], ["\n", "ab"]),
        (r"(?s)^.$", ["\n"], [""]),
        (r"(?m)^b$", ["a\nb\nc", "b"], ["ab"]),
        (r"[^a-c]", ["d", "ad"], ["abc"]),
        (r"^[]a]+$", ["]a"], ["[", ""]),
        (r"^[a-]$", ["a", "-"], ["b"]),
        (r"^[\w.-]+$", ["a_1.b-c"], ["a b"]),
        (r"^[[:alpha:]_]+$", ["aZ_"], ["a1"]),
        (r"^\p{Lu}\PN$", ["Ab"], ["ab", "A1"]),
        (r"^\x41\x{42}\103\t$", ["ABC\t"], ["ABC"]),
        (r"^\Qa.b\E+$", ["a.b", "a.bb"], ["axb", "a.ba.b"]),
        (r"^(?P<name>a)(?:b)?$", ["a", "ab"], ["b"]),
        (r"^a{,2}$", ["a{,2}"], ["aa"]),
        (r"^\.\/\-$", ["./-"], ["a/-"]),
        (r"^a+?b*?$", ["ab", "aab", "a"], ["b"]),
    ],
)
def test_pattern_matches_some_texts_and_not_others(
    text: str, yes: list[str], no: list[str]
) -> None:
    pattern = Pattern(text)
    assert [one for one in yes if not pattern.matches(one)] == []
    assert [one for one in no if pattern.matches(one)] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(", "missing closing ): `(`"),
        (")", "unexpected ): `)`"),
        ("[", "missing closing ]: `[`"),
        ("a**", "invalid nested repetition operator: `**`"),
        ("*a", "missing argument to repetition operator: `*`"),
        ("+", "missing argument to repetition operator: `+`"),
        ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
        ("(?<!a)", "invalid or unsupported Perl syntax: `(?<!`"),
        (r"(a)\1", r"invalid escape sequence: `\1`"),
        (r"\y", r"invalid escape sequence: `\y`"),
        (r"a\\\C", r"invalid escape sequence: `\C`"),
        ("a{1001}", "invalid repeat count: `{1001}`"),
        ("a{3,2}", "invalid repeat count: `{3,2}`"),
        ("[b-a]", "invalid character class range: `b-a`"),
        ("(?P<n", "invalid named capture: `(?P<n`"),
        (r"\p{Klingon}", r"invalid character class range: `\p{Klingon}`"),
        ("((a{1000}){1000})", "invalid repeat count: `{1000}`"),
        ("((((){1000}){1000}){1000}){1000}", "invalid repeat count: `{1000}`"),
        ("\\", "trailing backslash at end of expression: ``"),
        ("[[:nope:]]", "invalid character class range: `[:nope:]`"),
        (r"\x{zz}", r"invalid escape sequence: `\x{z`"),
        ("(?:[\\p{L}\\p{N}]{1000}a){9}", "invalid repeat count: `{9}`"),
        ("[\\p{L}\\p{N}]{1000}" * 9, "expression too large: ``"),
        ("\ud800", r"invalid UTF-8: `'\ud800'`"),
    ],
)
def test_bad_pattern_is_refused_with_the_message_of_go(text: str, message: str) -> None:
    with pytest.raises(BadPattern) as refusal:
        compile_pattern(text)
    assert str(refusal.value) == f"error parsing regexp: {message}"


def test_pattern_may_nest_groups_deeply_and_repeat_large_classes() -> None:
    assert Pattern("(" * 200 + "a" + ")" * 200).matches("a")
    assert Pattern(r"^[\p{L}\p{N} ]{1,255}$").matches("Größe \u0416" * 30)
    assert Pattern(r"^a\\C$").matches(r"a\C")


PIECES = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\w", r"\b", "^", "$", "-"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(
            inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "??", "{1,2}?"])
        ).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=8,
)


@given(PIECES, st.text("ab-\n", max_size=8))
def test_pattern_matches_where_the_backtracking_library_finds_it(pattern: str, text: str) -> None:
    expected = re.compile(pattern.replace("$", r"\Z")).search(text)
    spans = list(Pattern(pattern).find_all(text))
    assert Pattern(pattern).matches(text) == (expected is not None)
    assert (expected is None) == (not spans)
    assert expected is None or spans[0][0] == expected.start()


@pytest.mark.parametrize(
    ("text", "where", "found"),
    [
        ("a|ab", "xab", (1, 2)), ("ab|a", "xab", (1, 3)), ("a*", "aab", (0, 2)),
        ("a*?", "aab", (0, 0)), ("a+?b", "aab", (0, 3)), ("a{1,2}?", "aaa", (0, 1)),
        ("a{2,3}", "aaaa", (0, 3)), ("(?:a|b)*b", "abab-", (0, 4)), ("^b", "ab", None),
        (r"\bb", "ab b", (3, 4)), ("$", "ab", (2, 2)), ("(?:a*)*", "aab", (0, 2)),
    ],
)  # fmt: skip
def test_first_alternative_and_greedy_repetition_win(
    text: str, where: str, found: tuple[int, int] | None
) -> None:
    assert next(Pattern(text).find_all(where), None) == found


@pytest.mark.parametrize(
    ("pattern", "text", "spans"),
    [
        ("a", "aba", [(0, 1), (2, 3)]),
        ("^a", "aba", [(0, 1)]),
        ("a*", "baac", [(0, 0), (1, 3), (4, 4)]),
        ("", "é\u4e2d", [(0, 0), (1, 1), (2, 2)]),
        (r"\b", "ab c", [(0, 0), (2, 2), (3, 3), (4, 4)]),
        ("b", "é\ud800b", [(2, 3)]),
    ],
)
def test_successive_matches_do_not_overlap(
    pattern: str, text: str, spans: list[tuple[int, int]]
) -> None:
    assert list(Pattern(pattern).find_all(text)) == spans


def test_time_grows_with_the_text_and_not_with_the_ways_to_match_it() -> None:
    assert not Pattern(r"^(a+)+$").matches("a" * 50_000 + "b")
    assert not Pattern(r"^(a|a|aa)*$").matches("a" * 50_000 + "b")


def test_text_that_may_take_seconds_does_not_match() -> None:
    letters = "".join(Random(1).choices("ab", k=100_000))
    assert not Pattern("(a.{900}a.{900}b)+c").matches(letters)
    assert not Pattern("(a.{900}a.{900}b)*").matches(letters)


def test_text_of_ordinary_length_matches_whatever_the_size_of_the_pattern() -> None:
    assert Pattern("(a.{900}a.{900}b)*").matches("a" * MIN_TEXT_LIMIT)
    assert Pattern("^a+$").matches("a" * 3_000_000)
