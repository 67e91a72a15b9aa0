from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.regex import BadPattern, Pattern, compile_pattern

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
def test_a_pattern_is_in_some_texts_and_not_in_others(
    text: str, yes: list[str], no: list[str]
) -> None:
    found = Pattern(text)
    assert [one for one in yes if not found.matches(one)] == []
    assert [one for one in no if found.matches(one)] == []


@pytest.mark.parametrize(
    "text",
    [
        "(", ")", "[", "a**", "*a", "+", "(?=a)", "(?<!a)", r"(a)\1", r"\y", "a{1001}", "a{3,2}",
        "[b-a]", "(?P<n", r"\p{Klingon}", "((a{1000}){1000})", "\\", "[[:nope:]]", r"\x{zz}",
        "(" * 200 + ")" * 200,
    ],
)  # fmt: skip
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(BadPattern):
        compile_pattern(text)


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
def test_a_pattern_is_found_where_the_backtracking_library_finds_it(text: str, where: str) -> None:
    theirs = re.compile(text.replace("$", r"\Z"))
    assert Pattern(text).matches(where) == (theirs.search(where) is not None)


@given(PIECES, st.text("ab-\n", max_size=8))
def test_where_a_pattern_is_found_it_is_found_at_once(text: str, where: str) -> None:
    ours, theirs = Pattern(text).find(where), re.compile(text.replace("$", r"\Z")).search(where)
    assert (ours is None) == (theirs is None)
    assert ours is None or theirs is None or ours[0] == theirs.start()


@pytest.mark.parametrize(
    ("text", "where", "found"),
    [
        ("a|ab", "xab", (1, 2)), ("ab|a", "xab", (1, 3)), ("a*", "aab", (0, 2)),
        ("a*?", "aab", (0, 0)), ("a+?b", "aab", (0, 3)), ("a{1,2}?", "aaa", (0, 1)),
        ("a{2,3}", "aaaa", (0, 3)), ("(?:a|b)*b", "abab-", (0, 4)), ("^b", "ab", None),
        (r"\bb", "ab b", (3, 4)), ("$", "ab", (2, 2)), ("(?:a*)*", "aab", (0, 2)),
    ],
)  # fmt: skip
def test_of_several_matches_the_better_one_is_found(
    text: str, where: str, found: tuple[int, int] | None
) -> None:
    assert Pattern(text).find(where) == found


def test_a_match_is_looked_for_from_a_place_on() -> None:
    assert Pattern("a").find("aba", 1) == (2, 3)
    assert Pattern("^a").find("aba", 1) is None


def test_time_grows_with_the_text_and_not_with_the_ways_to_read_it() -> None:
    assert not Pattern(r"^(a+)+$").matches("a" * 50_000 + "b")
    assert not Pattern(r"^(a|a|aa)*$").matches("a" * 50_000 + "b")


def test_there_is_an_end_to_what_is_spent_on_one_text() -> None:
    letters = Random(1).choices("ab", k=100_000)
    assert not Pattern("(a.{900}a.{900}b)+c").matches("".join(letters))


def test_what_is_remembered_can_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.api.regex.MAX_CACHED_STEPS", 20)
    found = Pattern(r"^([a-f][0-9])+$")
    text = "".join(f"{letter}{digit}" for letter in "abcdef" for digit in range(10))
    assert found.matches(text)
    assert not found.matches(text + "x")


def test_repeating_nothing_costs_nothing() -> None:
    assert Pattern("((((){1000}){1000}){1000}){1000}").matches("")
