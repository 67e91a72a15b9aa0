"""Label selectors in objects."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from phalanx.api.selectors import BadSelector, format_selector, selector_matches
from phalanx.api.wire import Object


def expression(key: str, operator: str, *values: str) -> Object:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("selector", "labels", "is_selected"),
    [
        ({}, {}, True),
        ({"matchLabels": {"a": "1"}}, {"a": "1", "b": "2"}, True),
        ({"matchLabels": {"a": "1"}}, {"a": "2"}, False),
        ({"matchLabels": {"a": "1"}, **expression("b", "Exists")}, {"a": "1"}, False),
        (expression("a", "In", "1", "2"), {"a": "2"}, True),
        (expression("a", "In", "1", "2"), {}, False),
        (expression("a", "NotIn", "1"), {"a": "1"}, False),
        (expression("a", "NotIn", "1"), {}, True),
        (expression("a", "DoesNotExist"), {"a": "1"}, False),
        (expression("a", "DoesNotExist"), {}, True),
    ],
)
def test_selector_matches_labels(
    selector: Object, labels: Mapping[str, str], is_selected: bool
) -> None:
    assert selector_matches(selector, labels) is is_selected


def test_absent_selector_selects_nothing() -> None:
    assert not selector_matches(None, {"a": "1"})


def test_unknown_operator_is_refused() -> None:
    with pytest.raises(BadSelector, match="Like"):
        selector_matches(expression("a", "Like", "1"), {})


def test_selector_is_formatted_as_text() -> None:
    selector = {
        "matchLabels": {"b": "2", "a": "1"},
        "matchExpressions": [
            {"key": "c", "operator": "In", "values": ["y", "x"]},
            {"key": "d", "operator": "Exists"},
            {"key": "e", "operator": "DoesNotExist"},
        ],
    }
    assert format_selector(selector) == "a=1,b=2,c in (x,y),d,!e"
    assert format_selector({}) == ""
