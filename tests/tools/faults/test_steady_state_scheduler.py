"""Steady state of the scheduler: each kind of difference to the API is found."""

from __future__ import annotations

from msgspec.structs import replace

from phalanx.api.core import Node, Pod, PodResourceClaim, Taint
from phalanx.api.meta import ObjectMeta, pod_group_ref
from phalanx.api.other_kinds import DeviceClaim
from phalanx.api.scheduling import PodGroup
from phalanx.client.protocol import Listing
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.group_tree import group_ref
from phalanx.scheduler.decision import Binding, UnplacedPod, Waiting
from phalanx.scheduler.queue.scheduling_queue import SchedulingQueue
from phalanx.store.memory import MemoryStore
from tests.scheduler.builders import basic, cluster, gang, key, node, pod
from tools.faults.model import StoreLogReader
from tools.faults.steady_state import check_scheduler, compare_snapshots


def differences(cached: SchedulerCache, actual: SchedulerCache) -> list[str]:
    return list(compare_snapshots(cached.snapshot(), actual.snapshot()))


def bound_pod(name: str, **labels: str) -> Pod:
    return pod(name, on="n", cpu="1", labels=labels)


def test_snapshots_of_one_cluster_are_equal_in_any_order_of_events() -> None:
    ordered = cluster(
        [node("n", allocatable={"a": "1"}), node("m", allocatable={"b": "1"})], [bound_pod("p")]
    )
    reordered = cluster(
        [node("m", allocatable={"b": "1"}), node("n", allocatable={"a": "1"})], [bound_pod("p")]
    )
    assert differences(ordered, reordered) == []


def test_missing_node_is_found() -> None:
    assert differences(cluster([node("n")]), cluster([node("n"), node("m")])) == [
        "it knows the nodes ['n'], but there are ['m', 'n']"
    ]


def node_differences(cached: Node) -> list[str]:
    return differences(cluster([cached]), cluster([node("n")]))


def test_every_difference_of_a_node_is_found() -> None:
    assert node_differences(node("n")) == []
    assert len(node_differences(node("n", cpu="3"))) == 1
    assert len(node_differences(node("n", labels={"a": "b"}))) == 1
    assert len(node_differences(node("n", cordoned=True))) == 1
    assert len(node_differences(node("n", taints=(Taint("a", "", "NoSchedule"),)))) == 1


def test_leaked_resources_are_found() -> None:
    (difference,) = differences(cluster([node("n")], [bound_pod("p")]), cluster([node("n")]))
    assert "'cpu': (1000, 4000)" in difference
    assert "'cpu': (0, 4000)" in difference


def test_wrong_members_and_groups_are_found() -> None:
    member = replace(bound_pod("p"), spec=pod("p", "g", on="n", cpu="1").spec)
    cached, actual = cluster([node("n")], [member]), cluster([node("n")], [bound_pod("p")])
    assert any("bound members" in difference for difference in differences(cached, actual))
    cached.update_group(pod_group_ref(key("g")), basic("g"))
    assert "it knows other groups than there are" in differences(cached, actual)


def test_leaked_nomination_is_found() -> None:
    waiting = pod("p", cpu="1")
    cached, actual = cluster([node("n")], [waiting]), cluster([node("n")], [waiting])
    cached.nominate([Binding(key("p"), "uid-p", "n")])
    assert differences(cached, actual) == [
        "it has the nominations {'default/p': 'n'} instead of {}"
    ]


def test_victim_that_is_never_deleted_is_found() -> None:
    store_log, cache = StoreLogReader(MemoryStore()), cluster([], [bound_pod("p")])
    store_log.pods.replace(Listing([bound_pod("p")], 1))
    cache.mark_evicting([(key("p"), "uid-p")])
    assert "pod default/p is still taken for a victim" in check_scheduler(
        cache, SchedulingQueue(), store_log
    )


# ---- the queue -----------------------------------------------------------------------------------


def queue_problems(
    queued: list[Pod],
    *pods: Pod,
    groups: tuple[PodGroup, ...] = (),
    claims: tuple[DeviceClaim, ...] = (),
    known: bool = True,
) -> list[str]:
    """Return the problems of a scheduler with these pods in its queue and those in the API."""
    store_log, queue, cache = StoreLogReader(MemoryStore()), SchedulingQueue(), cluster([], pods)
    store_log.pods.replace(Listing(pods, 1))
    store_log.groups.replace(Listing(groups, 1))
    store_log.device_claims.replace(Listing(claims, 1))
    for group in groups:
        cache.update_group(group_ref(group), group)
        if known:
            queue.observe_group(group, 0.0)
    for queued_pod in queued:
        queue.observe_pod(queued_pod, 0.0)
    while entity := queue.pop(0.0):
        rejected = tuple(
            UnplacedPod(m.pod.metadata.key, m.pod.metadata.uid, None) for m in entity.members
        )
        queue.done(entity, Waiting(entity.group_key, rejected, 1, 0, 0, 0, frozenset()), 0.0)
    return list(check_scheduler(cache, queue, store_log))


def test_queue_with_exactly_the_waiting_pods_is_accepted() -> None:
    gated, member = pod("b", gates=["later"]), pod("c", "g")
    waiting = [pod("a"), gated, member]
    assert queue_problems(waiting, *waiting, pod("d", on="n"), groups=(gang("g", 2),)) == []


def test_pod_missing_in_the_queue_is_found() -> None:
    assert queue_problems([], pod("a")) == [
        "pod default/a is not in the queue, but should be BACKING_OFF"
    ]


def test_queued_pod_without_an_object_is_found() -> None:
    assert queue_problems([pod("a")]) == ["pod default/a is in the queue for nothing"]


def test_pod_whose_resource_claim_is_missing_or_leaves_must_be_gated() -> None:
    entry = PodResourceClaim("gpu", resource_claim_name="c")
    waiting = replace(pod("a"), spec=replace(pod("a").spec, resource_claims=(entry,)))
    gated = "pod default/a is BACKING_OFF in the queue, but should be GATED"
    assert queue_problems([waiting], waiting) == [gated]
    claim = DeviceClaim(ObjectMeta(name="c", namespace="default"))
    assert queue_problems([waiting], waiting, claims=(claim,)) == []
    leaving = replace(claim, metadata=replace(claim.metadata, deletion_timestamp="now"))
    assert queue_problems([waiting], waiting, claims=(leaving,)) == [gated]


def test_pod_in_the_wrong_queue_state_is_found() -> None:
    gang_of_two = (gang("g", 2),)
    pair = [pod("a", "g"), pod("b", "g")]
    assert queue_problems(pair, *pair, groups=gang_of_two) == []
    assert queue_problems(pair, *pair, groups=gang_of_two, known=False) == [
        f"pod default/{name} is INCOMPLETE in the queue, but should be BACKING_OFF" for name in "ab"
    ]
