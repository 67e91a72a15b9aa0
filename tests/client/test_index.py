from __future__ import annotations

from phalanx.api.core import Pod
from phalanx.client.index import Index

from .structs import pods


def by_node() -> Index[Pod]:
    return Index(lambda pod: [pod.node] if pod.node else [])


def test_objects_stand_under_what_is_said_of_them() -> None:
    index, (a, b, c) = by_node(), pods("a@1:x", "b@2:x", "c@3")
    for pod in (a, b, c):
        index.move(None, pod)
    assert index["x"] == (a, b)
    assert index["y"] == ()
    assert len(index) == 1


def test_an_object_moves_with_what_is_said_of_it_and_leaves_no_empty_place() -> None:
    index, (old, new) = by_node(), pods("a@1:x", "a@2:y")
    index.move(None, old)
    index.move(old, new)
    assert (index["x"], index["y"], len(index)) == ((), (new,), 1)
    index.move(new, None)
    assert len(index) == 0


def test_a_change_that_does_not_matter_to_the_index_keeps_the_objects_place() -> None:
    index, (a, b, newer) = by_node(), pods("a@1:x", "b@2:x", "a@3:x")
    index.move(None, a)
    index.move(None, b)
    index.move(a, newer)
    assert index["x"] == (newer, b)


def test_an_object_may_stand_in_several_places() -> None:
    index: Index[Pod] = Index(lambda pod: pod.metadata.name.split("-"))
    (pod,) = pods("a-b@1")
    index.move(None, pod)
    assert index["a"] == index["b"] == (pod,)
    index.move(pod, None)
    assert len(index) == 0
