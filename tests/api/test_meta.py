"""References: one object by kind, namespace and name."""

from __future__ import annotations

import pytest

from phalanx.api.meta import Key, Ref, composite_pod_group_ref, pod_group_ref, pod_ref

KEY = Key("default", "train")


def test_references_tell_objects_of_one_name_apart() -> None:
    refs = {pod_ref(KEY), pod_group_ref(KEY), composite_pod_group_ref(KEY)}
    assert refs == {Ref(kind, *KEY) for kind in ("Pod", "PodGroup", "CompositePodGroup")}
    assert {ref.key for ref in refs} == {KEY}


def test_references_sort_by_kind_namespace_and_name() -> None:
    names = [Key("b", "a"), Key("a", "b"), Key("a", "a")]
    assert sorted([*map(pod_group_ref, names), *map(pod_ref, names)]) == [
        *map(pod_ref, sorted(names)),
        *map(pod_group_ref, sorted(names)),
    ]


@pytest.mark.parametrize(
    ("ref", "text"),
    [(pod_group_ref(KEY), "PodGroup default/train"), (Ref("Node", "", "a"), "Node a")],
)
def test_references_are_formatted_as_kind_and_key(ref: Ref, text: str) -> None:
    assert str(ref) == text
