"""Merging an applied configuration, and removing fields from an object."""

from __future__ import annotations

import copy

import pytest

from phalanx.api.field_management.field_set import FieldSet
from phalanx.api.field_management.merge_diff import (
    find_merge_error,
    include_parent_structs,
    merge_configuration,
    remove_fields,
)
from phalanx.api.schema import schema
from phalanx.api.wire import Object

POD = schema("core.v1.Pod")
ACCOUNT = schema("core.v1.ServiceAccount")


def pod(*names: str) -> Object:
    return {"spec": {"containers": [{"name": name} for name in names]}}


def names(obj: Object) -> list[str]:
    return [container["name"] for container in obj["spec"]["containers"]]


@pytest.mark.parametrize(
    ("live", "config", "wanted"),
    [
        ("abc", "", "abc"),
        ("", "abc", "abc"),
        ("ab", "ab", "ab"),
        ("ab", "ba", "ba"),
        ("ax", "an", "axn"),
        ("xa", "na", "xna"),
        ("abx", "ba", "bxa"),
        ("axby", "anbm", "axnbym"),
        ("xy", "nm", "xynm"),
    ],
)
def test_configured_items_keep_their_order_and_others_their_predecessor(
    live: str, config: str, wanted: str
) -> None:
    assert "".join(names(merge_configuration(POD, pod(*live), pod(*config)))) == wanted


def test_structs_maps_sets_and_keyed_lists_are_merged_and_others_replaced() -> None:
    live = {
        "metadata": {"labels": {"a": "1", "b": "1"}, "finalizers": ["x"]},
        "spec": {
            "containers": [
                {
                    "name": "c",
                    "image": "old",
                    "command": ["a", "b"],
                    "ports": [{"containerPort": 1}],
                }
            ],
            "nodeSelector": {"a": "1"},
            "hostname": "h",
        },
    }
    config = {
        "metadata": {"labels": {"a": "2"}, "finalizers": ["y"]},
        "spec": {
            "containers": [
                {"name": "c", "command": ["z"], "ports": [{"containerPort": 1, "name": "p"}]}
            ],
            "nodeSelector": {"b": "1"},
            "securityContext": {},
        },
    }
    before = copy.deepcopy((live, config))
    assert merge_configuration(POD, live, config) == {
        "metadata": {"labels": {"a": "2", "b": "1"}, "finalizers": ["x", "y"]},
        "spec": {
            "containers": [
                {
                    "name": "c",
                    "image": "old",
                    "command": ["z"],
                    "ports": [{"containerPort": 1, "name": "p"}],
                }
            ],
            "nodeSelector": {"b": "1"},
            "hostname": "h",
            "securityContext": {},
        },
    }
    assert (live, config) == before


def test_removing_a_field_removes_everything_below_it() -> None:
    obj = {"metadata": {"labels": {"a": "1", "b": "2"}}, **pod("x", "y")}
    gone = FieldSet.from_fields_v1({
        "f:metadata": {"f:labels": {"f:a": {}}},
        "f:spec": {"f:containers": {'k:{"name":"x"}': {".": {}, "f:image": {}}}},
        "f:status": {},
    })  # fmt: skip
    assert remove_fields(POD, obj, gone) == {"metadata": {"labels": {"b": "2"}}, **pod("y")}


def test_nothing_is_removed_inside_an_atomic_value() -> None:
    obj = {"spec": {"nodeSelector": {"a": "1"}, "hostname": "h"}}
    inside = FieldSet.from_fields_v1({"f:spec": {"f:nodeSelector": {"f:a": {}}}})
    assert remove_fields(POD, obj, inside) == obj


def test_parent_structs_are_added_but_items_and_keys_are_not() -> None:
    fields = FieldSet.from_fields_v1(
        {
            "f:spec": {
                "f:containers": {'k:{"name":"x"}': {"f:resources": {"f:limits": {"f:cpu": {}}}}}
            }
        }
    )
    assert include_parent_structs(POD, fields).to_fields_v1() == {
        "f:spec": {
            ".": {},
            "f:containers": {
                ".": {},
                'k:{"name":"x"}': {
                    "f:resources": {".": {}, "f:limits": {".": {}, "f:cpu": {}}},
                },
            },
        }
    }


def test_duplicate_items_are_an_error() -> None:
    assert find_merge_error(POD, pod("a", "b")) == ""
    assert (
        find_merge_error(POD, pod("a", "a"))
        == '.spec.containers: duplicate entries for key [name="a"]'
    )
    ports = [{"containerPort": 80}, {"containerPort": 80, "protocol": "TCP"}]
    twice = {"spec": {"containers": [{"name": "a", "ports": ports}]}}
    assert find_merge_error(POD, twice) == (
        '.spec.containers[name="a"].ports: duplicate entries for key '
        '[containerPort=80,protocol="TCP"]'
    )
    assert find_merge_error(POD, {"metadata": {"finalizers": ["a/b", "a/b"]}}) == (
        '.metadata.finalizers: duplicate entries for key [="a/b"]'
    )


def test_item_without_its_key_is_an_error() -> None:
    assert find_merge_error(ACCOUNT, {"secrets": [{"name": "a"}, {"namespace": "x"}]}) == (
        ".secrets: element 1: associative list with keys has an element that omits key field "
        '"name" (and doesn\'t have default value)'
    )
