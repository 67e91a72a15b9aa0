from __future__ import annotations

from phalanx.api.core import Pod
from phalanx.client.cache import CacheIndex

from .structs import pods


def move(index: CacheIndex[Pod], old: Pod | None, new: Pod | None) -> None:
    (name,) = {pod.metadata.key for pod in (old, new) if pod is not None}
    index.update(name, old, new)


def by_node() -> CacheIndex[Pod]:
    return CacheIndex(lambda pod: [pod.occupied_node] if pod.occupied_node else [])


def test_objects_stand_under_what_is_said_of_them() -> None:
    index, (a, b, c) = by_node(), pods("a@1:x", "b@2:x", "c@3")
    for pod in (a, b, c):
        move(index, None, pod)
    assert index["x"] == (a, b)
    assert index["y"] == ()
    assert len(index) == 1


def test_an_object_moves_with_what_is_said_of_it_and_leaves_no_empty_place() -> None:
    index, (old, new) = by_node(), pods("a@1:x", "a@2:y")
    move(index, None, old)
    move(index, old, new)
    assert (index["x"], index["y"], len(index)) == ((), (new,), 1)
    move(index, new, None)
    assert len(index) == 0


def test_a_change_that_does_not_matter_to_the_index_keeps_the_objects_place() -> None:
    index, (a, b, newer) = by_node(), pods("a@1:x", "b@2:x", "a@3:x")
    move(index, None, a)
    move(index, None, b)
    move(index, a, newer)
    assert index["x"] == (newer, b)


def test_an_object_may_stand_in_several_places() -> None:
    index: CacheIndex[Pod] = CacheIndex(lambda pod: pod.metadata.name.split("-"))
    (pod,) = pods("a-b@1")
    move(index, None, pod)
    assert index["a"] == index["b"] == (pod,)
    move(index, pod, None)
    assert len(index) == 0
