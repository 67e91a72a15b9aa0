"""Trees of groups in the scheduling queue."""

from __future__ import annotations

from msgspec.structs import replace

from phalanx.api.core import Pod
from phalanx.api.meta import composite_pod_group_ref
from phalanx.api.scheduling import WorkloadReference
from phalanx.scheduler.cluster.group_tree import Group
from phalanx.scheduler.decision import IncompleteGroupTree, MissingGroups, Placed
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queue.queue_listing import QueuedEntityInfo
from phalanx.scheduler.queue.queued_entity import QueueState
from phalanx.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.scheduler.builders import composite, gang, key, pod
from tests.scheduler.queue.queue_helpers import bindings, refusal

ROOT = composite("t", 2)
LEAVES = gang("a", 1, parent="t"), gang("b", 1, parent="t")
PODS = pod("a-0", "a"), pod("b-0", "b")


def queue(*things: Group | Pod) -> SchedulingQueue:
    found = SchedulingQueue()
    for thing in things:
        if isinstance(thing, Pod):
            found.observe_pod(thing, 0.0)
        else:
            found.observe_group(thing, 0.0)
    return found


def only_entity(one: SchedulingQueue) -> QueuedEntityInfo:
    (place,) = one.list_entities()
    return place


def popped_entity(one: SchedulingQueue) -> Entity:
    entity = one.pop(0.0)
    assert entity is not None
    return entity


def test_tree_is_one_entity_in_any_order_of_arrival() -> None:
    for order in ((ROOT, *LEAVES, *PODS), (*PODS, *LEAVES, ROOT), (*PODS, ROOT, *LEAVES)):
        one = queue(*order)
        entity = popped_entity(one)
        assert entity.ref == composite_pod_group_ref(key("t"))
        assert [part.key.name for part in entity.children] == ["a", "b"]
        assert [[m.pod.metadata.name for m in part.members] for part in entity.children] == [
            ["a-0"], ["b-0"],
        ]  # fmt: skip
        assert one.pop(0.0) is None


def test_groups_wait_separately_for_their_root() -> None:
    one = queue(*LEAVES, *PODS)
    message = 'waiting for CompositePodGroup "t" to appear'
    assert [place.unready for place in one.list_held_back()] == [IncompleteGroupTree(message)] * 2
    one.observe_group(ROOT, 1.0)
    assert only_entity(one).state is QueueState.ACTIVE


def test_tree_waits_for_the_members_of_enough_groups() -> None:
    one = queue(ROOT, *LEAVES, PODS[0])
    assert (only_entity(one).state, only_entity(one).unready) == (
        QueueState.INCOMPLETE,
        MissingGroups(2, 1),
    )
    one.observe_pod(PODS[1], 1.0)
    assert only_entity(one).state is QueueState.ACTIVE


def test_each_level_counts_its_children() -> None:
    sub = composite("s", 2, parent="t")
    leaves = [gang("a", 1, parent="s"), gang("b", 1, parent="s")]
    one = queue(composite("t", 1), sub, *leaves, PODS[0])
    assert only_entity(one).unready == MissingGroups(1, 0)
    one.observe_pod(PODS[1], 1.0)
    (part,) = popped_entity(one).children
    assert [leaf.key.name for leaf in part.children] == ["a", "b"]


def test_scheduling_gate_of_one_pod_gates_the_whole_tree() -> None:
    one = queue(ROOT, *LEAVES, PODS[0], pod("b-0", "b", gates=["quota"]))
    assert only_entity(one).state is QueueState.GATED


def test_groups_are_incomplete_after_deletion_of_their_root() -> None:
    one = queue(ROOT, *LEAVES, *PODS)
    one.remove_group(composite_pod_group_ref(key("t")), 1.0)
    assert {place.key.name: place.state for place in one.list_entities()} == {
        "a": QueueState.INCOMPLETE, "b": QueueState.INCOMPLETE,
    }  # fmt: skip
    one.observe_group(ROOT, 2.0)
    assert only_entity(one).state is QueueState.ACTIVE


def test_attempts_of_a_pod_move_with_it() -> None:
    one = queue(ROOT, *LEAVES, *PODS)
    entity = popped_entity(one)
    one.done(entity, refusal(entity), 0.0)
    one.remove_group(composite_pod_group_ref(key("t")), 1.0)
    one.observe_group(ROOT, 2.0)
    assert [member.attempts for member in popped_entity(one).members] == [2, 2]


def test_decision_is_outdated_if_the_tree_gets_another_group() -> None:
    one = queue(ROOT, *LEAVES, *PODS)
    entity = popped_entity(one)
    assert one.is_current(entity, bindings(entity))
    one.observe_group(gang("c", 1, parent="t"), 1.0)
    assert not one.is_current(entity, bindings(entity))


def test_decision_is_outdated_if_the_root_is_deleted() -> None:
    one = queue(ROOT, *LEAVES, *PODS)
    entity = popped_entity(one)
    one.remove_group(composite_pod_group_ref(key("t")), 1.0)
    assert not one.is_current(entity, bindings(entity))
    one.requeue(entity, 1.0)
    assert {place.key.name for place in one.list_entities()} == {"a", "b"}


def test_late_group_of_a_placed_tree_is_attempted_with_the_tree() -> None:
    one = queue(composite("t", 1), LEAVES[0], PODS[0])
    entity = popped_entity(one)
    one.done(entity, Placed(key("t"), bindings(entity)), 0.0)
    one.observe_group(LEAVES[1], 1.0)
    one.observe_pod(PODS[1], 1.0)
    again = popped_entity(one)
    assert [m.pod.metadata.name for m in again.members] == ["b-0"]
    assert [p.metadata.name for p in again.other_members] == ["a-0"]


def test_broken_trees_are_listed() -> None:
    one = queue(composite("s", 1, parent="t"))
    message = 'waiting for CompositePodGroup "t" to appear'
    assert list(one.broken_trees()) == [(key("s"), IncompleteGroupTree(message))]
    one.observe_group(composite("t", 1, parent="s"), 1.0)
    assert [what.is_invalid for _, what in one.broken_trees()] == [True, True]


def test_deleted_pod_group_without_pods_leaves_no_entry() -> None:
    one = queue(ROOT, *LEAVES, *PODS)
    for gone in PODS:
        one.remove_pod(gone.metadata.key, 1.0)
    assert one.list_entities() == []
    assert one.pop(2.0) is None


def test_group_of_another_workload_is_not_part_of_the_tree() -> None:
    root, stranger = of_workload(composite("t", 1), "one"), of_workload(LEAVES[1], "other")
    one = queue(root, of_workload(LEAVES[0], "one"), stranger, *PODS)
    entity = popped_entity(one)
    assert [part.key.name for part in entity.children] == ["a"]
    assert one.is_current(entity, bindings(entity))
    assert [place.key.name for place in one.list_held_back()] == ["b"]


def of_workload(group: Group, name: str) -> Group:
    return replace(group, spec=replace(group.spec, workload_ref=WorkloadReference(name, "main")))
