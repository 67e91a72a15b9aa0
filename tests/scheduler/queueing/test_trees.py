"""Trees of groups in the queue: when one is tried, and as what."""

from __future__ import annotations

from msgspec.structs import replace

from phalanx.api.core import Pod
from phalanx.api.scheduling import WorkloadReference
from phalanx.scheduler.cluster.forest import Group
from phalanx.scheduler.decision import Misplaced, MissingGroups, Placed
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queueing.entry import State
from phalanx.scheduler.queueing.place import Place
from phalanx.scheduler.queueing.queue import Queue
from tests.scheduler.builders import composite, gang, key, pod
from tests.scheduler.queueing.queues import bindings, refusal

ROOT = composite("t", 2)
LEAVES = gang("a", 1, parent="t"), gang("b", 1, parent="t")
PODS = pod("a-0", "a"), pod("b-0", "b")


def queue(*things: Group | Pod) -> Queue:
    found = Queue()
    for thing in things:
        if isinstance(thing, Pod):
            found.pod(thing, 0.0)
        else:
            found.group(thing, 0.0)
    return found


def only(one: Queue) -> Place:
    (place,) = one.listing()
    return place


def taken(one: Queue) -> Entity:
    entity = one.pop(0.0)
    assert entity is not None
    return entity


def test_a_tree_is_one_entity_however_its_parts_arrive() -> None:
    for order in ((ROOT, *LEAVES, *PODS), (*PODS, *LEAVES, ROOT), (*PODS, ROOT, *LEAVES)):
        one = queue(*order)
        entity = taken(one)
        assert (entity.key, entity.is_composite) == (key("t"), True)
        assert [part.key.name for part in entity.parts] == ["a", "b"]
        assert [[m.pod.metadata.name for m in part.members] for part in entity.parts] == [
            ["a-0"], ["b-0"],
        ]  # fmt: skip
        assert one.pop(0.0) is None


def test_groups_wait_for_their_root_by_themselves() -> None:
    one = queue(*LEAVES, *PODS)
    message = 'waiting for CompositePodGroup "t" to appear'
    assert [place.unready for place in one.waiting()] == [Misplaced(message)] * 2
    one.group(ROOT, 1.0)
    assert only(one).state is State.ACTIVE


def test_a_tree_waits_for_the_members_of_enough_groups() -> None:
    one = queue(ROOT, *LEAVES, PODS[0])
    assert (only(one).state, only(one).unready) == (State.INCOMPLETE, MissingGroups(2, 1))
    one.pod(PODS[1], 1.0)
    assert only(one).state is State.ACTIVE


def test_levels_count_their_own() -> None:
    sub = composite("s", 2, parent="t")
    leaves = [gang("a", 1, parent="s"), gang("b", 1, parent="s")]
    one = queue(composite("t", 1), sub, *leaves, PODS[0])
    assert only(one).unready == MissingGroups(1, 0)
    one.pod(PODS[1], 1.0)
    (part,) = taken(one).parts
    assert [leaf.key.name for leaf in part.parts] == ["a", "b"]


def test_a_gate_on_one_pod_holds_back_the_whole_tree() -> None:
    one = queue(ROOT, *LEAVES, PODS[0], pod("b-0", "b", gates=["quota"]))
    assert only(one).state is State.GATED


def test_a_root_that_goes_sends_its_groups_back_to_waiting() -> None:
    one = queue(ROOT, *LEAVES, *PODS)
    one.group_gone(key("t"), 1.0, is_composite=True)
    assert {place.key.name: place.state for place in one.listing()} == {
        "a": State.INCOMPLETE, "b": State.INCOMPLETE,
    }  # fmt: skip
    one.group(ROOT, 2.0)
    assert only(one).state is State.ACTIVE


def test_the_attempts_of_a_pod_move_with_it() -> None:
    one = queue(ROOT, *LEAVES, *PODS)
    entity = taken(one)
    one.done(entity, refusal(entity), 0.0)
    one.group_gone(key("t"), 1.0, is_composite=True)
    one.group(ROOT, 2.0)
    assert [member.attempts for member in taken(one).members] == [2, 2]


def test_what_was_found_is_not_wanted_once_the_tree_has_another_group() -> None:
    one = queue(ROOT, *LEAVES, *PODS)
    entity = taken(one)
    assert one.is_current(entity, bindings(entity))
    one.group(gang("c", 1, parent="t"), 1.0)
    assert not one.is_current(entity, bindings(entity))


def test_what_was_found_is_not_wanted_once_its_root_is_gone() -> None:
    one = queue(ROOT, *LEAVES, *PODS)
    entity = taken(one)
    one.group_gone(key("t"), 1.0, is_composite=True)
    assert not one.is_current(entity, bindings(entity))
    one.again(entity, 1.0)
    assert {place.key.name for place in one.listing()} == {"a", "b"}


def test_a_late_group_of_a_placed_tree_is_tried_with_it() -> None:
    one = queue(composite("t", 1), LEAVES[0], PODS[0])
    entity = taken(one)
    one.done(entity, Placed(key("t"), bindings(entity)), 0.0)
    one.group(LEAVES[1], 1.0)
    one.pod(PODS[1], 1.0)
    again = taken(one)
    assert [m.pod.metadata.name for m in again.members] == ["b-0"]
    assert [p.metadata.name for p in again.others] == ["a-0"]


def test_groups_of_groups_that_hang_wrong_are_named() -> None:
    one = queue(composite("s", 1, parent="t"))
    message = 'waiting for CompositePodGroup "t" to appear'
    assert list(one.misplaced()) == [(key("s"), Misplaced(message))]
    one.group(composite("t", 1, parent="s"), 1.0)
    assert [what.invalid for _, what in one.misplaced()] == [True, True]


def test_a_pod_group_without_pods_leaves_nothing_behind() -> None:
    one = queue(ROOT, *LEAVES, *PODS)
    for gone in PODS:
        one.pod_gone(gone.metadata.key, 1.0)
    assert one.listing() == []
    assert one.pop(2.0) is None


def test_a_group_of_another_workload_waits_by_itself_and_is_no_part_of_the_tree() -> None:
    root, stranger = of_workload(composite("t", 1), "one"), of_workload(LEAVES[1], "other")
    one = queue(root, of_workload(LEAVES[0], "one"), stranger, *PODS)
    entity = taken(one)
    assert [part.key.name for part in entity.parts] == ["a"]
    assert one.is_current(entity, bindings(entity))
    assert [place.key.name for place in one.waiting()] == ["b"]


def of_workload(group: Group, name: str) -> Group:
    return replace(group, spec=replace(group.spec, workload_ref=WorkloadReference(name, "main")))
