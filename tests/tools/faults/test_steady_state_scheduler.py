"""What must hold at rest: each sort of disagreement is found."""

from __future__ import annotations

from msgspec.structs import replace

from phalanx.api.core import Node, Pod, Taint
from phalanx.api.scheduling import PodGroup
from phalanx.client.protocol import Listing
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.group_tree import GroupRef, group_ref
from phalanx.scheduler.decision import Binding, UnplacedPod, Waiting
from phalanx.scheduler.queue.scheduling_queue import SchedulingQueue
from phalanx.store.memory import MemoryStore
from tests.scheduler.builders import basic, cluster, gang, key, node, pod
from tools.faults.model import StoreLogReader
from tools.faults.steady_state import check_scheduler, compare_snapshots


def found(held: SchedulerCache, true: SchedulerCache) -> list[str]:
    return list(compare_snapshots(held.snapshot(), true.snapshot()))


def running(name: str, **labels: str) -> Pod:
    return pod(name, on="n", cpu="1", labels=labels)


def test_two_views_of_one_cluster_agree_whatever_came_first() -> None:
    one = cluster([node("n", room={"a": "1"}), node("m", room={"b": "1"})], [running("p")])
    other = cluster([node("m", room={"b": "1"}), node("n", room={"a": "1"})], [running("p")])
    assert found(one, other) == []


def test_nodes_that_only_one_knows_are_found() -> None:
    assert found(cluster([node("n")]), cluster([node("n"), node("m")])) == [
        "it knows the nodes ['n'], but there are ['m', 'n']"
    ]


def changed(one: Node) -> list[str]:
    return found(cluster([one]), cluster([node("n")]))


def test_anything_that_differs_about_a_node_is_found() -> None:
    assert changed(node("n")) == []
    assert len(changed(node("n", cpu="3"))) == 1
    assert len(changed(node("n", labels={"a": "b"}))) == 1
    assert len(changed(node("n", cordoned=True))) == 1
    assert len(changed(node("n", taints=(Taint("a", "", "NoSchedule"),)))) == 1


def test_room_that_is_taken_for_nobody_is_found() -> None:
    (sentence,) = found(cluster([node("n")], [running("p")]), cluster([node("n")]))
    assert "'cpu': (1000, 4000)" in sentence
    assert "'cpu': (0, 4000)" in sentence


def test_members_and_groups_that_are_counted_wrongly_are_found() -> None:
    member = replace(running("p"), spec=pod("p", "g", on="n", cpu="1").spec)
    held, true = cluster([node("n")], [member]), cluster([node("n")], [running("p")])
    assert any("members with nodes" in sentence for sentence in found(held, true))
    held.update_group(GroupRef(False, key("g")), basic("g"))
    assert "it knows other groups than there are" in found(held, true)


def test_what_is_kept_for_nobody_is_found() -> None:
    waiting = pod("p", cpu="1")
    held, true = cluster([node("n")], [waiting]), cluster([node("n")], [waiting])
    held.nominate([Binding(key("p"), "uid-p", "n")])
    assert found(held, true) == ["it keeps {'default/p': 'n'} for pods, but they were promised {}"]


def test_a_victim_that_never_leaves_is_found() -> None:
    tail, cache = StoreLogReader(MemoryStore()), cluster([], [running("p")])
    tail.pods.replace(Listing([running("p")], 1))
    cache.mark_evicting([(key("p"), "uid-p")])
    assert "pod default/p is still taken for a victim" in check_scheduler(
        cache, SchedulingQueue(), tail
    )


# ---- the queue -----------------------------------------------------------------------------------


def unrested(
    queued: list[Pod], *pods: Pod, groups: tuple[PodGroup, ...] = (), known: bool = True
) -> list[str]:
    """What is wrong about a scheduler that has these pods in its queue, given those that are."""
    tail, queue, cache = StoreLogReader(MemoryStore()), SchedulingQueue(), cluster([], pods)
    tail.pods.replace(Listing(pods, 1))
    tail.groups.replace(Listing(groups, 1))
    for group in groups:
        cache.update_group(group_ref(group), group)
        if known:
            queue.observe_group(group, 0.0)
    for one in queued:
        queue.observe_pod(one, 0.0)
    while entity := queue.pop(0.0):
        refused = tuple(
            UnplacedPod(m.pod.metadata.key, m.pod.metadata.uid, None) for m in entity.members
        )
        queue.done(entity, Waiting(entity.group_key, refused, 1, 0, 0, 0, frozenset()), 0.0)
    return list(check_scheduler(cache, queue, tail))


def test_a_queue_that_holds_whoever_waits_is_well() -> None:
    gated, member = pod("b", gates=["later"]), pod("c", "g")
    waiting = [pod("a"), gated, member]
    assert unrested(waiting, *waiting, pod("d", on="n"), groups=(gang("g", 2),)) == []


def test_a_pod_that_the_queue_has_forgotten_is_found() -> None:
    assert unrested([], pod("a")) == [
        "pod default/a is not in the queue, but should be BACKING_OFF"
    ]


def test_a_pod_that_is_in_the_queue_for_nothing_is_found() -> None:
    assert unrested([pod("a")]) == ["pod default/a is in the queue for nothing"]


def test_a_pod_that_is_in_the_wrong_place_is_found() -> None:
    gang_of_two = (gang("g", 2),)
    pair = [pod("a", "g"), pod("b", "g")]
    assert unrested(pair, *pair, groups=gang_of_two) == []
    assert unrested(pair, *pair, groups=gang_of_two, known=False) == [
        f"pod default/{name} is INCOMPLETE in the queue, but should be BACKING_OFF" for name in "ab"
    ]
