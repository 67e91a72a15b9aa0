from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.patch import (
    MAX_OPERATIONS,
    MalformedPatch,
    PatchFailed,
    TooManyOperations,
    apply_patch,
    merge_patch,
)
from phalanx.api.schema import schema
from phalanx.api.wire import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Object

POD = schema("core.v1.Pod")

values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(("x", "y")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


def apply_patch_to_copy(kind: str, obj: Object, patch: Any) -> Object:
    return apply_patch(kind, POD, copy.deepcopy(obj), patch=patch)


def apply_strategic(obj: Object, patch: Any) -> Object:
    return apply_patch_to_copy(STRATEGIC_PATCH, obj, patch)


# ---- merge patches -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("obj", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({"a": "b"}, {}, {"a": "b"}),
    ],
)
def test_merge_patch_follows_rfc_7396(obj: Object, patch: Object, result: Object) -> None:
    """The examples of RFC 7396 that concern objects."""
    assert apply_patch_to_copy(MERGE_PATCH, obj, patch) == result


@given(objects, objects)
def test_merge_patch_is_idempotent(obj: Object, patch: Object) -> None:
    once = merge_patch(copy.deepcopy(obj), patch)
    assert merge_patch(copy.deepcopy(once), patch) == once


@pytest.mark.parametrize("patch", [[], "text", 5, True])
@pytest.mark.parametrize("kind", [MERGE_PATCH, STRATEGIC_PATCH])
def test_merge_patch_must_be_an_object(kind: str, patch: object) -> None:
    with pytest.raises(MalformedPatch):
        apply_patch_to_copy(kind, {}, patch)


def test_null_is_an_empty_strategic_merge_patch() -> None:
    assert apply_patch_to_copy(STRATEGIC_PATCH, {"a": "b"}, None) == {"a": "b"}
    with pytest.raises(MalformedPatch):
        apply_patch_to_copy(MERGE_PATCH, {"a": "b"}, None)


# ---- JSON patches --------------------------------------------------------------------------------

BASE: Object = {"a": {"b": [1, 2]}, "c": "d", "x/y": 1, "t~": 2}


@pytest.mark.parametrize(
    ("steps", "result"),
    [
        ([{"op": "add", "path": "/e", "value": 5}], {**BASE, "e": 5}),
        ([{"op": "add", "path": "/a/b/1", "value": 9}], {**BASE, "a": {"b": [1, 9, 2]}}),
        ([{"op": "add", "path": "/a/b/-", "value": 9}], {**BASE, "a": {"b": [1, 2, 9]}}),
        ([{"op": "replace", "path": "/c", "value": 5}], {**BASE, "c": 5}),
        ([{"op": "remove", "path": "/a"}], {k: v for k, v in BASE.items() if k != "a"}),
        ([{"op": "copy", "from": "/a/b/0", "path": "/e"}], {**BASE, "e": 1}),
        ([{"op": "move", "from": "/a/b", "path": "/b"}], {**BASE, "a": {}, "b": [1, 2]}),
        ([{"op": "replace", "path": "/x~1y", "value": 7}], {**BASE, "x/y": 7}),
        ([{"op": "replace", "path": "/t~0", "value": 7}], {**BASE, "t~": 7}),
        ([{"op": "test", "path": "/c", "value": "d"}], BASE),
        ([{"op": "test", "path": "/nothing", "value": None}], BASE),
        ([{"op": "add", "path": "/e"}], {**BASE, "e": None}),
        ([], BASE),
    ],
    ids=lambda value: str(value)[:50],
)
def test_json_patch_follows_rfc_6902(steps: list[Object], result: Object) -> None:
    assert apply_patch_to_copy(JSON_PATCH, BASE, steps) == result


def test_replace_operation_creates_a_missing_field() -> None:
    steps = [{"op": "replace", "path": "/a/new", "value": 5}]
    assert apply_patch_to_copy(JSON_PATCH, BASE, steps)["a"] == {"b": [1, 2], "new": 5}


def test_operation_sees_the_result_of_earlier_operations() -> None:
    steps = [
        {"op": "add", "path": "/metadata", "value": {}},
        {"op": "replace", "path": "/metadata/labels", "value": {"a": "b"}},
        {"op": "add", "path": "/metadata/labels/c", "value": "d"},
    ]
    assert apply_patch_to_copy(JSON_PATCH, {}, steps) == {
        "metadata": {"labels": {"a": "b", "c": "d"}}
    }


def test_null_is_an_empty_json_patch() -> None:
    assert apply_patch_to_copy(JSON_PATCH, BASE, None) == BASE


@pytest.mark.parametrize(
    ("step", "items"),
    [
        ({"op": "add", "path": "/a/b/-1", "value": 3}, [1, 2, 3]),
        ({"op": "add", "path": "/a/b/-3", "value": 3}, [3, 1, 2]),
        ({"op": "replace", "path": "/a/b/-1", "value": 3}, [1, 3]),
        ({"op": "remove", "path": "/a/b/-2"}, [2]),
        ({"op": "copy", "from": "/a/b/-2", "path": "/a/b/-"}, [1, 2, 1]),
    ],
)
def test_negative_index_counts_from_the_end_of_a_list(step: Object, items: list[int]) -> None:
    assert apply_patch_to_copy(JSON_PATCH, BASE, [step])["a"]["b"] == items


@pytest.mark.parametrize(
    "steps",
    [
        {}, "text", [1], [[]], [None],
        [{"op": "dance", "path": "/a"}], [{"path": "/a"}], [{"op": "add", "value": 1}],
        [{"op": "test", "path": "/c", "value": "e"}],
        [{"op": "test", "path": "/c", "value": None}],
        [{"op": "remove", "path": "/nothing"}], [{"op": "remove", "path": "/a/b/7"}],
        [{"op": "add", "path": "/a/b/7", "value": 1}],
        [{"op": "add", "path": "/a/b/x", "value": 1}],
        [{"op": "replace", "path": "/a/b/7", "value": 1}], [{"op": "add", "path": "c", "value": 1}],
        [{"op": "add", "path": "/no/where", "value": 1}], [{"op": "copy", "path": "/e"}],
        [{"op": "move", "from": "/a", "path": "/a/b"}], [{"op": "add", "path": 5, "value": 1}],
        [{"op": "copy", "from": 5, "path": "/e"}], [{"op": ["add"], "path": "/e", "value": 1}],
        [{"op": "replace", "path": "", "value": []}], [{"op": "add", "path": "/~2", "value": 1}],
        [{"op": "add", "path": "/c/d", "value": 1}], [{"op": "remove", "path": ""}],
        [{"op": "remove", "path": "/a/b/-3"}], [{"op": "add", "path": "/a/b/-4", "value": 1}],
        [{"op": None, "path": "/c"}], [{"op": "test", "path": "/a/b/-", "value": 1}],
    ],
    ids=str,
)  # fmt: skip
def test_impossible_operations_fail(steps: Any) -> None:
    with pytest.raises(PatchFailed):
        apply_patch_to_copy(JSON_PATCH, BASE, steps)


def test_number_of_operations_is_limited() -> None:
    with pytest.raises(TooManyOperations):
        apply_patch_to_copy(
            JSON_PATCH, {}, [{"op": "add", "path": "/a", "value": 1}] * (MAX_OPERATIONS + 1)
        )


def test_bytes_of_copy_operations_are_limited() -> None:
    steps = [{"op": "copy", "from": "/a", "path": f"/a/x{n}"} for n in range(16)]
    with pytest.raises(PatchFailed):
        apply_patch_to_copy(JSON_PATCH, {"a": {"text": "x" * 1000}}, steps)


@given(objects, st.lists(st.fixed_dictionaries({
    "op": st.sampled_from(("add", "remove", "replace", "move", "copy", "test")),
    "path": st.text("/abc012-~", max_size=6), "from": st.text("/abc012-~", max_size=6),
    "value": values,
}), max_size=4))  # fmt: skip
def test_json_patch_returns_an_object_or_fails(obj: Object, steps: list[Object]) -> None:
    with suppress(PatchFailed):
        assert isinstance(apply_patch_to_copy(JSON_PATCH, obj, steps), dict)


# ---- strategic merge patches ---------------------------------------------------------------------


def containers(*names: str, **more: object) -> Object:
    return {"spec": {"containers": [{"name": name, **more} for name in names]}}


def container_names(obj: Object) -> list[str]:
    return [container["name"] for container in obj["spec"]["containers"]]


def test_lists_with_merge_key_are_merged_by_key() -> None:
    obj = containers("a", "b", image="old")
    result = apply_strategic(obj, {"spec": {"containers": [{"name": "b", "image": "new"}]}})
    assert result["spec"]["containers"] == [
        {"name": "a", "image": "old"}, {"name": "b", "image": "new"},
    ]  # fmt: skip


def test_item_is_deleted_by_its_merge_key() -> None:
    patch = {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}
    assert container_names(apply_strategic(containers("a", "b"), patch)) == ["b"]
    assert container_names(apply_strategic(containers("b"), patch)) == ["b"]


def test_deletion_removes_every_item_with_the_key_wherever_it_is_in_the_patch() -> None:
    obj = containers("a", "b", "a", image="old")
    deletion, addition = {"name": "a", "$patch": "delete"}, {"name": "a", "image": "new"}
    assert container_names(apply_strategic(obj, {"spec": {"containers": [deletion]}})) == ["b"]
    for items in ([deletion, addition], [addition, deletion]):
        result = apply_strategic(obj, {"spec": {"containers": items}})["spec"]["containers"]
        assert sorted(result, key=lambda item: item["name"]) == [
            addition, {"name": "b", "image": "old"},
        ]  # fmt: skip


def test_list_can_be_replaced_as_a_whole() -> None:
    patch = {"spec": {"containers": [{"name": "c"}, {"$patch": "replace"}]}}
    assert container_names(apply_strategic(containers("a", "b"), patch)) == ["c"]
    patch["spec"]["containers"].append({"name": "b", "$patch": "delete"})
    assert container_names(apply_strategic(containers("a", "b"), patch)) == ["c"]


def test_map_can_be_replaced_or_deleted_as_a_whole() -> None:
    obj = {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}
    patch = {"metadata": {"labels": {"$patch": "replace", "e": "f"},
                          "annotations": {"$patch": "delete"}}}  # fmt: skip
    assert apply_strategic(obj, patch) == {"metadata": {"labels": {"e": "f"}}}


def test_primitive_lists_with_merge_strategy_are_united() -> None:
    obj = {"metadata": {"finalizers": ["a", "b"]}}
    result = apply_strategic(obj, {"metadata": {"finalizers": ["b", "c"]}})
    assert sorted(result["metadata"]["finalizers"]) == ["a", "b", "c"]


def test_items_are_deleted_from_a_primitive_list() -> None:
    obj = {"metadata": {"finalizers": ["a", "b", "c"]}}
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a", "c", "z"]}}
    assert apply_strategic(obj, patch)["metadata"]["finalizers"] == ["b"]


def test_lists_without_a_strategy_are_replaced() -> None:
    obj = {"spec": {"containers": [{"name": "a", "command": ["x", "y"]}]}}
    patch = {"spec": {"containers": [{"name": "a", "command": ["z"]}]}}
    assert apply_strategic(obj, patch)["spec"]["containers"][0]["command"] == ["z"]


def test_patch_may_set_the_element_order() -> None:
    order = [{"name": "c"}, {"name": "a"}, {"name": "b"}]
    patch = {"spec": {"$setElementOrder/containers": order, "containers": [{"name": "c"}]}}
    assert container_names(apply_strategic(containers("a", "b"), patch)) == ["c", "a", "b"]


def test_order_of_a_directive_and_its_list_in_the_patch_does_not_matter() -> None:
    order = {"$setElementOrder/containers": [{"name": "e"}, {"name": "a"}]}
    changes = {"containers": [{"name": "a", "image": "new"}, {"name": "e"}]}
    for spec in ({**order, **changes}, {**changes, **order}):
        result = apply_strategic(containers("a", "b"), {"spec": copy.deepcopy(spec)})
        assert container_names(result) == ["e", "a", "b"]
        assert result["spec"]["containers"][1]["image"] == "new"


def test_items_missing_in_the_element_order_stay_behind_their_predecessor() -> None:
    order = [{"name": "d"}, {"name": "b"}]
    patch = {"spec": {"$setElementOrder/containers": order}}
    assert container_names(apply_strategic(containers("a", "b", "c", "d"), patch)) == [
        "a",
        "c",
        "d",
        "b",
    ]


def test_only_retained_keys_are_kept() -> None:
    obj = {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}
    patch = {"spec": {"volumes": [
        {"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}},
    ]}}  # fmt: skip
    assert apply_strategic(obj, patch)["spec"]["volumes"] == [
        {"name": "v", "hostPath": {"path": "/x"}}
    ]


def test_null_removes_and_no_directive_remains() -> None:
    obj = {"metadata": {"labels": {"a": "b", "c": "d"}}}
    result = apply_strategic(obj, {"metadata": {"labels": {"a": None, "$patch": "merge"}}})
    assert result == {"metadata": {"labels": {"c": "d"}}}


@pytest.mark.parametrize(
    "patch",
    [
        {"$patch": "dance"}, {"$patch": ["delete"]}, {"$retainKeys": 5},
        {"spec": {"containers": [{"image": "nameless"}]}}, {"spec": {"containers": ["a"]}},
        {"spec": {"containers": [{"name": ["x"]}]}}, {"spec": {"containers": [{"name": {}}]}},
        {"spec": {"containers": [{"$patch": "replace"}, 5]}},
        {"spec": {"$setElementOrder/containers": 5}},
        {"spec": {"$setElementOrder/containers": [{"name": ["x"]}]}},
        {"spec": {"$setElementOrder/nothing": []}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": 5}},
        {"metadata": {"finalizers": 5, "$deleteFromPrimitiveList/finalizers": ["x"]}},
        {"metadata": {"finalizers": "x", "$deleteFromPrimitiveList/finalizers": ["x"]}},
        {"spec": {"containers": 5, "$setElementOrder/containers": [{"name": "a"}]}},
        {"spec": {"containers": {"a": 1}, "$setElementOrder/containers": [{"name": "a"}]}},
        {"spec": {"$setElementOrder/containers": [{"name": "a"}], "containers": 5,
                  "$deleteFromPrimitiveList/containers": ["a"]}},
        {"metadata": {"finalizers": [["a"]]}},
    ],
    ids=str,
)  # fmt: skip
def test_patch_of_wrong_structure_fails(patch: Object) -> None:
    obj = {**containers("a", "b"), "metadata": {"finalizers": ["x"]}}
    with pytest.raises(PatchFailed):
        apply_strategic(obj, patch)


@given(st.data())
def test_merging_an_object_into_itself_changes_nothing(data: st.DataObject) -> None:
    found = data.draw(st.lists(st.sampled_from("abcd"), unique=True, min_size=1))
    obj = {"metadata": {"labels": {"a": "b"}}, **containers(*found, image="i")}
    assert apply_strategic(obj, copy.deepcopy(obj)) == obj
