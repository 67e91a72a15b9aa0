from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.selectors import (
    MAX_LENGTH,
    BadSelector,
    field_value,
    fields_match,
    parse_field_selector,
    parse_label_selector,
)

LABELS = {"app": "web", "tier": "front", "size": "5", "empty": ""}


def matches(text: str, labels: dict[str, str] = LABELS) -> bool:
    return all(need.matches(labels) for need in parse_label_selector(text))


# ---- labels --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "", "app=web", "app==web", "app = web", "app", "!missing", "! missing", "app in (web,db)",
        "app in ( db , web )", "app notin (db)", "missing notin (web)", "missing!=web", "app!=db",
        "empty=", "empty in ()", "empty in (,)", "empty in (a,)", "size>4", "size<6", "size gt 4",
        "size lt 6", "app=web,tier=front", "app=web , !missing,size>4", "in=x", "notin",
        "example.com/app!=web", "app notin (,)",
    ],
)  # fmt: skip
def test_selector_matches(text: str) -> None:
    assert matches(text, {**LABELS, "in": "x", "notin": "y"})


@pytest.mark.parametrize(
    "text",
    [
        "app=db", "app!=web", "missing", "!app", "app in (db)", "app in ()", "app notin (web)",
        "missing in (a)", "missing=", "size>5", "size<5", "app>4", "missing>4", "empty>0",
        "app=web,tier=back", "empty", "example.com/app",
    ],
)  # fmt: skip
def test_selector_does_not_match(text: str) -> None:
    labels = {key: value for key, value in LABELS.items() if key != "empty" or text != "empty"}
    assert not matches(text, labels)


@pytest.mark.parametrize(
    "text",
    [
        "=", "a=b=c", "a,", ",a", "a,,b", "a in", "a in b", "a in (", "a in (b", "a in b)", "a (b)",
        "a notin", "!", "!!a", "a b", "a>x", "a<", "a>1.5", "a<-1", "a=b c", "(a)", "-a=b",
        "a/b/c=d", "a=b/c", f"{'x' * 64}=a", f"a={'x' * 64}", "a=-b", "é=a", "a=é", "a in (b c)",
        "a in (b))", "a != b, c in",
    ],
)  # fmt: skip
def test_malformed_label_selector_is_refused(text: str) -> None:
    with pytest.raises(BadSelector):
        parse_label_selector(text)


def test_length_of_a_selector_is_limited() -> None:
    assert parse_label_selector("a," * (MAX_LENGTH // 2 - 1) + "a")
    for parse in (parse_label_selector, parse_field_selector):
        with pytest.raises(BadSelector, match="longer than"):
            parse("a" * (MAX_LENGTH + 1))


names = st.from_regex(r"[a-z]{1,3}", fullmatch=True)


@given(st.dictionaries(names, names), names, st.lists(names, min_size=1))
def test_in_and_notin_are_complementary(
    labels: dict[str, str], key: str, values: list[str]
) -> None:
    inside, outside = f"{key} in ({','.join(values)})", f"{key} notin ({','.join(values)})"
    if key in ("in", "notin", "gt", "lt"):
        return
    assert matches(inside, labels) != matches(outside, labels)
    assert matches(f"{key}={values[0]}", labels) != matches(f"{key}!={values[0]}", labels)
    assert matches(key, labels) != matches(f"!{key}", labels)


@given(st.text(alphabet="ab=!<>(), /.-inotgl5", max_size=20))
def test_any_text_parses_or_raises_bad_selector(text: str) -> None:
    with suppress(BadSelector):
        matches(text)


# ---- fields --------------------------------------------------------------------------------------

POD = {
    "metadata": {"name": "a"},
    "spec": {"nodeName": "n1", "hostNetwork": True, "containers": []},
    "status": {"phase": "Running", "count": 5},
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "a"),
        ("spec.hostNetwork", "true"),
        ("status.count", "5"),
        ("spec.missing", ""),
        ("missing.field", ""),
        ("metadata.name.deeper", ""),
        ("spec.containers", ""),
        ("spec", ""),
    ],
)
def test_field_is_compared_as_text(path: str, value: str) -> None:
    assert field_value(POD, path) == value


def test_absent_field_has_the_default_of_its_kind() -> None:
    absent = {"spec.unschedulable": "false"}
    assert fields_match(
        parse_field_selector("spec.unschedulable=false"), {"spec": {}}, absent, paths={}
    )
    assert not fields_match(
        parse_field_selector("spec.unschedulable=true"), {"spec": {}}, absent, paths={}
    )
    cordoned = {"spec": {"unschedulable": True}}
    assert fields_match(parse_field_selector("spec.unschedulable=true"), cordoned, absent, paths={})


def test_selector_may_have_another_name_than_its_field() -> None:
    paths, absent = {"status.successful": "status.succeeded"}, {"status.successful": "0"}
    done = {"status": {"succeeded": 2}}
    assert fields_match(parse_field_selector("status.successful=2"), done, absent, paths=paths)
    assert fields_match(
        parse_field_selector("status.successful=0"), {"status": {}}, absent, paths=paths
    )


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("metadata.name=a", True),
        ("metadata.name==a", True),
        ("metadata.name!=a", False),
        ("metadata.name=a,status.phase!=Failed", True),
        ("metadata.name=a,status.phase=Failed", False),
        ("spec.missing=", True),
        (",metadata.name=a,", True),
    ],
)
def test_field_selectors_match_or_not(text: str, holds: bool) -> None:
    assert fields_match(parse_field_selector(text), POD, {}, paths={}) == holds


@pytest.mark.parametrize("text", ["a", "metadata.name", "a>b", "a in (b)"])
def test_malformed_field_selector_is_refused(text: str) -> None:
    with pytest.raises(BadSelector, match="can't understand"):
        parse_field_selector(text)


def test_equals_signs_in_the_value_of_a_field_are_escaped() -> None:
    assert parse_field_selector(r"metadata.name=a\=b")[0].value == "a=b"
    with pytest.raises(BadSelector, match="unescaped character"):
        parse_field_selector("metadata.name=a=b")
