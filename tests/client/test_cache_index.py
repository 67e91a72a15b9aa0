from __future__ import annotations

from phalanx.api.core import Pod
from phalanx.client.cache import CacheIndex

from .structs import pods


def update(index: CacheIndex[Pod], old: Pod | None, new: Pod | None) -> None:
    (name,) = {pod.metadata.key for pod in (old, new) if pod is not None}
    index.update(name, old, new)


def by_node() -> CacheIndex[Pod]:
    return CacheIndex(lambda pod: [pod.occupied_node] if pod.occupied_node else [])


def test_objects_are_found_under_their_index_values() -> None:
    index, (a, b, c) = by_node(), pods("a@1:x", "b@2:x", "c@3")
    for pod in (a, b, c):
        update(index, None, pod)
    assert index["x"] == (a, b)
    assert index["y"] == ()
    assert len(index) == 1


def test_object_moves_to_its_new_index_value_and_leaves_no_empty_entry() -> None:
    index, (old, new) = by_node(), pods("a@1:x", "a@2:y")
    update(index, None, old)
    update(index, old, new)
    assert (index["x"], index["y"], len(index)) == ((), (new,), 1)
    update(index, new, None)
    assert len(index) == 0


def test_change_with_the_same_index_value_keeps_the_order_of_objects() -> None:
    index, (a, b, newer) = by_node(), pods("a@1:x", "b@2:x", "a@3:x")
    update(index, None, a)
    update(index, None, b)
    update(index, a, newer)
    assert index["x"] == (newer, b)


def test_object_is_found_under_each_of_its_index_values() -> None:
    index: CacheIndex[Pod] = CacheIndex(lambda pod: pod.metadata.name.split("-"))
    (pod,) = pods("a-b@1")
    update(index, None, pod)
    assert index["a"] == index["b"] == (pod,)
    update(index, pod, None)
    assert len(index) == 0
