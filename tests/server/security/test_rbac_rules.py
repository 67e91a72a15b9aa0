from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.server.security.rbac import AuthorizationAttributes, PolicyRule, uncovered_rules

PODS = PolicyRule(("get",), ("",), ("pods",))


@pytest.mark.parametrize(
    ("rule", "ask", "is_allowed"),
    [
        (PODS, AuthorizationAttributes("get", "", "pods"), True),
        (PODS, AuthorizationAttributes("list", "", "pods"), False),
        (PODS, AuthorizationAttributes("get", "apps", "pods"), False),
        (PODS, AuthorizationAttributes("get", "", "pods/status"), False),
        (PODS, AuthorizationAttributes("get", path="/pods"), False),
        (PolicyRule(("*",), ("*",), ("*",)), AuthorizationAttributes("dance", "x", "y/z"), True),
        (
            PolicyRule(("*",), ("*",), ("*",)),
            AuthorizationAttributes("get", path="/metrics"),
            False,
        ),
        (
            PolicyRule(("get",), ("",), ("*/status",)),
            AuthorizationAttributes("get", "", "pods/status"),
            True,
        ),
        (
            PolicyRule(("get",), ("",), ("*/status",)),
            AuthorizationAttributes("get", "", "pods"),
            False,
        ),
        (
            PolicyRule(("get",), ("",), ("pods",), ("a",)),
            AuthorizationAttributes("get", "", "pods", name="a"),
            True,
        ),
        (
            PolicyRule(("get",), ("",), ("pods",), ("a",)),
            AuthorizationAttributes("get", "", "pods", name="b"),
            False,
        ),
        (
            PolicyRule(("get",), ("",), ("pods",), ("a",)),
            AuthorizationAttributes("get", "", "pods"),
            False,
        ),
        (
            PolicyRule(("get",), paths=("/a/*",)),
            AuthorizationAttributes("get", path="/a/b/c"),
            True,
        ),
        (PolicyRule(("get",), paths=("/a/*",)), AuthorizationAttributes("get", path="/a"), False),
        (PolicyRule(("get",), paths=("/a",)), AuthorizationAttributes("get", path="/a/b"), False),
        (PolicyRule(("get",), paths=("*",)), AuthorizationAttributes("get", path="/a"), True),
    ],
)
def test_a_rule_allows_what_it_says_and_nothing_else(
    rule: PolicyRule, ask: AuthorizationAttributes, is_allowed: bool
) -> None:
    assert rule.allows(ask) == is_allowed


@pytest.mark.parametrize(
    ("held", "wanted", "is_covered"),
    [
        (PODS, PODS, True),
        (PolicyRule(("get", "list"), ("", "x"), ("pods", "y")), PODS, True),
        (PODS, PolicyRule(("get",), ("",), ("*",)), False),
        (PODS, PolicyRule(("*",), ("",), ("pods",)), False),
        (PODS, PolicyRule(("get",), ("",), ("pods",), ("a",)), True),
        (PolicyRule(("get",), ("",), ("pods",), ("a",)), PODS, False),
        (
            PolicyRule(("get",), ("",), ("pods",), ("a", "b")),
            PolicyRule(("get",), ("",), ("pods",), ("a",)), True,
        ),
        (PolicyRule(("get",), ("",), ("*/x",)), PolicyRule(("get",), ("",), ("pods/x",)), True),
        (PolicyRule(("get",), paths=("/a/*",)), PolicyRule(("get",), paths=("/a/b",)), True),
        (PolicyRule(("get",), paths=("/a/*",)), PolicyRule(("get",), paths=("/a/b/*",)), True),
        (PolicyRule(("get",), paths=("/a",)), PolicyRule(("get",), paths=("/a*",)), False),
        (PolicyRule(("get",), paths=("/a/b",)), PolicyRule(("get",), paths=("/a/*",)), False),
    ],
)  # fmt: skip
def test_nobody_covers_more_than_they_hold(
    held: PolicyRule, wanted: PolicyRule, is_covered: bool
) -> None:
    assert (not uncovered_rules([held], [wanted])) == is_covered


def test_what_is_covered_by_several_rules_together_is_covered() -> None:
    both = PolicyRule(("get", "list"), ("",), ("pods", "nodes"))
    held = [PolicyRule((v,), ("",), (r,)) for v in ("get", "list") for r in ("pods", "nodes")]
    assert uncovered_rules(held, [both]) == []
    assert uncovered_rules(held[1:], [both]) == [PolicyRule(("get",), ("",), ("pods",))]


words = st.lists(st.sampled_from(("*", "a", "b", "a/x", "*/x")), min_size=1, max_size=2).map(tuple)
names = st.lists(st.sampled_from(("n", "m")), max_size=1).map(tuple)
rules = st.builds(PolicyRule, words, words, words, names)
asks = st.builds(
    AuthorizationAttributes, st.sampled_from("abc"), st.sampled_from("abc"),
    st.sampled_from(("a", "b", "a/x", "c/x")), st.just(""), st.sampled_from(("", "n", "m")),
)  # fmt: skip


@given(st.lists(rules, max_size=3), rules, asks)
def test_what_a_covered_rule_allows_those_who_cover_it_allow(
    held: list[PolicyRule], wanted: PolicyRule, ask: AuthorizationAttributes
) -> None:
    if not uncovered_rules(held, [wanted]) and wanted.allows(ask):
        assert any(rule.allows(ask) for rule in held)


def test_a_rule_reads_what_it_shows() -> None:
    rule = PolicyRule(("get",), ("",), ("pods",), ("a",))
    assert PolicyRule.from_object(rule.to_object()) == rule
    assert str(rule) == '{APIGroups:[""], Resources:["pods"], ResourceNames:["a"], Verbs:["get"]}'
