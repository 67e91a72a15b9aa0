from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.server.security.rbac import AuthorizationAttributes, PolicyRule, uncovered_rules

PODS = PolicyRule(("get",), ("",), ("pods",))


@pytest.mark.parametrize(
    ("rule", "attributes", "is_allowed"),
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
def test_rule_allows_exactly_its_verbs_groups_resources_names_and_paths(
    rule: PolicyRule, attributes: AuthorizationAttributes, is_allowed: bool
) -> None:
    assert rule.allows(attributes) == is_allowed


@pytest.mark.parametrize(
    ("held", "requested", "is_covered"),
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
def test_rule_covers_only_rules_that_it_contains(
    held: PolicyRule, requested: PolicyRule, is_covered: bool
) -> None:
    assert (not uncovered_rules([held], [requested])) == is_covered


def test_several_rules_together_cover_a_rule() -> None:
    both = PolicyRule(("get", "list"), ("",), ("pods", "nodes"))
    held = [PolicyRule((v,), ("",), (r,)) for v in ("get", "list") for r in ("pods", "nodes")]
    assert uncovered_rules(held, [both]) == []
    assert uncovered_rules(held[1:], [both]) == [PolicyRule(("get",), ("",), ("pods",))]


words = st.lists(st.sampled_from(("*", "a", "b", "a/x", "*/x")), min_size=1, max_size=2).map(tuple)
names = st.lists(st.sampled_from(("n", "m")), max_size=1).map(tuple)
rules = st.builds(PolicyRule, words, words, words, names)
attribute_sets = st.builds(
    AuthorizationAttributes, st.sampled_from("abc"), st.sampled_from("abc"),
    st.sampled_from(("a", "b", "a/x", "c/x")), st.just(""), st.sampled_from(("", "n", "m")),
)  # fmt: skip


@given(st.lists(rules, max_size=3), rules, attribute_sets)
def test_request_allowed_by_a_covered_rule_is_allowed_by_the_covering_rules(
    held: list[PolicyRule], requested: PolicyRule, attributes: AuthorizationAttributes
) -> None:
    if not uncovered_rules(held, [requested]) and requested.allows(attributes):
        assert any(rule.allows(attributes) for rule in held)


def test_rule_survives_a_round_trip() -> None:
    rule = PolicyRule(("get",), ("",), ("pods",), ("a",))
    assert PolicyRule.from_object(rule.to_object()) == rule
    assert str(rule) == '{APIGroups:[""], Resources:["pods"], ResourceNames:["a"], Verbs:["get"]}'
