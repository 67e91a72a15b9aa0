"""FieldSet: its algebra compared with sets of tuples, and FieldsV1."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.field_management.field_set import (
    MAX_DEPTH,
    BadFieldSet,
    ElementPath,
    FieldSet,
    format_path,
)

ELEMENTS = ("f:a", "f:b", "f:spec", 'k:{"name":"x"}', 'k:{"port":80,"protocol":"TCP"}', 'v:"x"')
MODELS = st.frozensets(
    st.lists(st.sampled_from(ELEMENTS), min_size=1, max_size=4).map(tuple), max_size=12
)
Model = frozenset[ElementPath]


def field_set(*paths: ElementPath) -> FieldSet:
    """Build a set of paths in FieldsV1, member by member."""
    root: dict[str, Any] = {}
    for path in paths:
        branch = root
        for element in path:
            branch = branch.setdefault(element, {})
        branch["."] = {}
    return FieldSet.from_fields_v1(root)


def is_canonical(tree: dict[str, Any]) -> bool:
    """Whether a tree is sorted and has no redundant dot."""
    return (
        list(tree) == sorted(tree)
        and list(tree) != ["."]
        and all(is_canonical(branch) for branch in tree.values())
    )


def is_same_set(found: FieldSet, wanted: Model) -> bool:
    paths = list(found)
    return len(paths) == len(wanted) and set(paths) == wanted and is_canonical(found.to_fields_v1())


@given(MODELS, MODELS)
def test_the_operations_are_those_of_sets(one: Model, two: Model) -> None:
    a, b = field_set(*one), field_set(*two)
    assert is_same_set(a | b, one | two)
    assert is_same_set(a & b, one & two)
    assert is_same_set(a - b, one - two)
    assert bool(a) == bool(one)
    assert (a == b) == (one == two)


@given(MODELS, MODELS, MODELS)
def test_set_algebra_holds(one: Model, two: Model, three: Model) -> None:
    a, b, c = field_set(*one), field_set(*two), field_set(*three)
    assert a | b == b | a
    assert a & b == b & a
    assert (a | b) | c == a | (b | c)
    assert a & (b | c) == (a & b) | (a & c)
    assert a - (b | c) == (a - b) - c
    assert (a - b) | (a & b) == a
    assert not (a - b) & b
    assert a | a == a & a == a
    assert not a - a


@given(MODELS, MODELS)
def test_operations_do_not_change_their_operands(one: Model, two: Model) -> None:
    a, b = field_set(*one), field_set(*two)
    _ = (a | b, a & b, a - b, a.without_prefix(("f:spec",)))
    assert is_same_set(a, one)
    assert is_same_set(b, two)


@given(MODELS, st.lists(st.sampled_from(ELEMENTS), min_size=1, max_size=4).map(tuple))
def test_set_contains_its_members_only(model: Model, path: ElementPath) -> None:
    assert (path in field_set(*model)) == (path in model)
    assert () not in field_set(*model)


@given(MODELS, st.lists(st.sampled_from(ELEMENTS), min_size=1, max_size=3).map(tuple))
def test_without_prefix_removes_the_path_and_everything_below(
    model: Model, prefix: ElementPath
) -> None:
    rest = frozenset(path for path in model if path[: len(prefix)] != prefix)
    assert is_same_set(field_set(*model).without_prefix(prefix), rest)


@given(MODELS)
def test_fields_v1_round_trip(model: Model) -> None:
    found = field_set(*model)
    assert FieldSet.from_fields_v1(found.to_fields_v1()) == found
    assert is_same_set(FieldSet.from_fields_v1(found.to_fields_v1()), model)


def test_a_branch_is_a_member_if_it_is_empty_or_has_a_dot() -> None:
    alone = FieldSet.from_fields_v1({"f:data": {"f:a": {}}})
    assert list(alone) == [("f:data", "f:a")]
    both = FieldSet.from_fields_v1({"f:data": {".": {}, "f:a": {}}})
    assert list(both) == [("f:data",), ("f:data", "f:a")]


def test_elements_become_canonical() -> None:
    found = FieldSet.from_fields_v1({
        'k:{"protocol": "TCP", "port": 80}': {".": {}},
        'k:{"port":80,"protocol":"TCP"}': {"f:name": {}},
        "i:0": {},
        'v: "x"': {},
        ".": {},
    })  # fmt: skip
    assert found.to_fields_v1() == {
        "i:0": {},
        'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:name": {}},
        'v:"x"': {},
    }


def deep_tree(levels: int) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for _ in range(levels):
        tree = {"f:a": tree}
    return tree


@pytest.mark.parametrize(
    "nonsense",
    [
        [],
        "f:a",
        None,
        {"f:a": None},
        {"f:a": []},
        {"a": {}},
        {"x:a": {}},
        {"": {}},
        {"f:a": {".": {"f:b": {}}}},
        {"k:": {}},
        {"k:{}": {}},
        {"k:[1]": {}},
        {'k:{"a":[]}': {}},
        {"v:": {}},
        {"v:{}": {}},
        {"i:x": {}},
        {'i:"0"': {}},
        deep_tree(MAX_DEPTH + 1),
    ],
)
def test_malformed_fields_v1_is_refused(nonsense: object) -> None:
    with pytest.raises(BadFieldSet):
        FieldSet.from_fields_v1(nonsense)


def test_set_is_parsed_up_to_the_depth_limit() -> None:
    assert len(next(iter(FieldSet.from_fields_v1(deep_tree(MAX_DEPTH))))) == MAX_DEPTH


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("f:data", "f:a"), ".data.a"),
        (("f:spec", "f:containers", 'k:{"name":"x"}', "f:image"),
         '.spec.containers[name="x"].image'),
        (("f:ports", 'k:{"containerPort":80,"protocol":"TCP"}'),
         '.ports[containerPort=80,protocol="TCP"]'),
        (("f:metadata", "f:finalizers", 'v:"a/b"'), '.metadata.finalizers[="a/b"]'),
        (("f:args", "i:2"), ".args[2]"),
    ],
)  # fmt: skip
def test_paths_are_formatted_for_messages(path: ElementPath, text: str) -> None:
    assert format_path(path) == text


def test_repr_lists_the_paths() -> None:
    assert repr(field_set(("f:b",), ("f:a", 'v:"x"'))) == 'FieldSet(.a[="x"], .b)'
