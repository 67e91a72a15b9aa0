from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.server.security.rules import Ask, Rule, uncovered

PODS = Rule(("get",), ("",), ("pods",))


@pytest.mark.parametrize(
    ("rule", "ask", "is_allowed"),
    [
        (PODS, Ask("get", "", "pods"), True),
        (PODS, Ask("list", "", "pods"), False),
        (PODS, Ask("get", "apps", "pods"), False),
        (PODS, Ask("get", "", "pods/status"), False),
        (PODS, Ask("get", path="/pods"), False),
        (Rule(("*",), ("*",), ("*",)), Ask("dance", "x", "y/z"), True),
        (Rule(("*",), ("*",), ("*",)), Ask("get", path="/metrics"), False),
        (Rule(("get",), ("",), ("*/status",)), Ask("get", "", "pods/status"), True),
        (Rule(("get",), ("",), ("*/status",)), Ask("get", "", "pods"), False),
        (Rule(("get",), ("",), ("pods",), ("a",)), Ask("get", "", "pods", name="a"), True),
        (Rule(("get",), ("",), ("pods",), ("a",)), Ask("get", "", "pods", name="b"), False),
        (Rule(("get",), ("",), ("pods",), ("a",)), Ask("get", "", "pods"), False),
        (Rule(("get",), paths=("/a/*",)), Ask("get", path="/a/b/c"), True),
        (Rule(("get",), paths=("/a/*",)), Ask("get", path="/a"), False),
        (Rule(("get",), paths=("/a",)), Ask("get", path="/a/b"), False),
        (Rule(("get",), paths=("*",)), Ask("get", path="/a"), True),
    ],
)
def test_a_rule_allows_what_it_says_and_nothing_else(
    rule: Rule, ask: Ask, is_allowed: bool
) -> None:
    assert rule.allows(ask) == is_allowed


@pytest.mark.parametrize(
    ("held", "wanted", "is_covered"),
    [
        (PODS, PODS, True),
        (Rule(("get", "list"), ("", "x"), ("pods", "y")), PODS, True),
        (PODS, Rule(("get",), ("",), ("*",)), False),
        (PODS, Rule(("*",), ("",), ("pods",)), False),
        (PODS, Rule(("get",), ("",), ("pods",), ("a",)), True),
        (Rule(("get",), ("",), ("pods",), ("a",)), PODS, False),
        (
            Rule(("get",), ("",), ("pods",), ("a", "b")),
            Rule(("get",), ("",), ("pods",), ("a",)), True,
        ),
        (Rule(("get",), ("",), ("*/x",)), Rule(("get",), ("",), ("pods/x",)), True),
        (Rule(("get",), paths=("/a/*",)), Rule(("get",), paths=("/a/b",)), True),
        (Rule(("get",), paths=("/a/*",)), Rule(("get",), paths=("/a/b/*",)), True),
        (Rule(("get",), paths=("/a",)), Rule(("get",), paths=("/a*",)), False),
        (Rule(("get",), paths=("/a/b",)), Rule(("get",), paths=("/a/*",)), False),
    ],
)  # fmt: skip
def test_nobody_covers_more_than_they_hold(held: Rule, wanted: Rule, is_covered: bool) -> None:
    assert (not uncovered([held], [wanted])) == is_covered


def test_what_is_covered_by_several_rules_together_is_covered() -> None:
    both = Rule(("get", "list"), ("",), ("pods", "nodes"))
    held = [Rule((v,), ("",), (r,)) for v in ("get", "list") for r in ("pods", "nodes")]
    assert uncovered(held, [both]) == []
    assert uncovered(held[1:], [both]) == [Rule(("get",), ("",), ("pods",))]


words = st.lists(st.sampled_from(("*", "a", "b", "a/x", "*/x")), min_size=1, max_size=2).map(tuple)
names = st.lists(st.sampled_from(("n", "m")), max_size=1).map(tuple)
rules = st.builds(Rule, words, words, words, names)
asks = st.builds(
    Ask, st.sampled_from("abc"), st.sampled_from("abc"),
    st.sampled_from(("a", "b", "a/x", "c/x")), st.just(""), st.sampled_from(("", "n", "m")),
)  # fmt: skip


@given(st.lists(rules, max_size=3), rules, asks)
def test_what_a_covered_rule_allows_those_who_cover_it_allow(
    held: list[Rule], wanted: Rule, ask: Ask
) -> None:
    if not uncovered(held, [wanted]) and wanted.allows(ask):
        assert any(rule.allows(ask) for rule in held)


def test_a_rule_reads_what_it_shows() -> None:
    rule = Rule(("get",), ("",), ("pods",), ("a",))
    assert Rule.read(rule.shown()) == rule
    assert str(rule) == '{APIGroups:[""], Resources:["pods"], ResourceNames:["a"], Verbs:["get"]}'
