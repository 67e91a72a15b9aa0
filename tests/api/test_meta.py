"""References: one object by kind, namespace and name."""

from __future__ import annotations

import msgspec
import pytest

from phalanx.api.core import Pod
from phalanx.api.meta import (
    LAST_APPLIED_ANNOTATION,
    Key,
    ObjectMeta,
    Ref,
    composite_pod_group_ref,
    pod_group_ref,
    pod_ref,
)

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


def test_applied_manifest_of_an_object_is_not_decoded() -> None:
    annotations = {LAST_APPLIED_ANNOTATION: '{"env":"secret"}', "phalanx.dev/stages": "{run: 5}"}
    pod = msgspec.convert({"metadata": {"name": "p", "annotations": annotations}}, Pod)
    assert pod.metadata.annotations == {"phalanx.dev/stages": "{run: 5}"}
    assert b"secret" not in msgspec.json.encode(pod)


def test_objects_without_labels_and_annotations_share_the_empty_dict() -> None:
    metas = [msgspec.json.decode(b'{"name":"p"}', type=ObjectMeta) for _ in range(2)]
    assert metas[0].labels == metas[0].annotations == {}
    assert all(meta.labels is meta.annotations is metas[0].labels for meta in metas)
