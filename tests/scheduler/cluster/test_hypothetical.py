"""The cluster without some pods, and with others."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace as but

from phalanx.api.core import ContainerPort
from phalanx.scheduler.cluster.hypothetical import BULK_THRESHOLD, with_changes
from phalanx.scheduler.cluster.peer_constraints import PodSelector
from phalanx.scheduler.cluster.pod_index import AssignedPod, PodSelection
from phalanx.scheduler.cluster.pod_shape import shape_of
from tests.scheduler.builders import cluster, key, node, pod


def assigned_pod(name: str, on: str, cpu: str = "1", **labels: str) -> AssignedPod:
    made = pod(name, cpu=cpu, labels=labels)
    return AssignedPod(key(name), f"uid-{name}", on, labels, shape_of(made))


def test_without_a_change_it_is_the_same_snapshot() -> None:
    snapshot = cluster([node("a")]).snapshot()
    assert with_changes(snapshot) is snapshot


def test_who_goes_leaves_what_it_took_and_who_comes_takes_it() -> None:
    cache = cluster([node("a"), node("b")], [pod("x", on="a", cpu="2")])
    snapshot = cache.snapshot()
    other = with_changes(
        snapshot, removed=[assigned_pod("x", "a", "2")], added=[assigned_pod("y", "b", "1")]
    )
    cpu = snapshot.columns["cpu"]
    assert snapshot.requested[:, cpu].tolist() == [2000, 0]
    assert other.requested[:, cpu].tolist() == [0, 1000]
    assert other.requested[:, snapshot.columns["pods"]].tolist() == [0, 1]
    fresh = cluster([node("a"), node("b")], [pod("y", on="b", cpu="1")]).snapshot()
    assert np.array_equal(other.requested, fresh.requested)
    assert np.array_equal(other.nonzero_requested, fresh.nonzero_requested)


def test_many_come_and_go_as_a_few_do() -> None:
    snapshot = cluster([node("a"), node("b")], [pod("x", on="a", cpu="9")]).snapshot()
    pods = [assigned_pod(f"p{n}", "abc"[n % 3], str(1 + n % 4)) for n in range(2 * BULK_THRESHOLD)]
    few = snapshot
    for one in pods:
        few = with_changes(few, added=[one])
    many = with_changes(snapshot, added=pods)
    assert np.array_equal(many.requested, few.requested)
    assert np.array_equal(many.nonzero_requested, few.nonzero_requested)
    assert np.array_equal(with_changes(many, removed=pods).requested, snapshot.requested)


def test_pods_on_nodes_that_are_not_there_change_nothing() -> None:
    snapshot = cluster([node("a")]).snapshot()
    other = with_changes(
        snapshot, removed=[assigned_pod("x", "gone")], added=[assigned_pod("y", "gone")]
    )
    assert np.array_equal(other.requested, snapshot.requested)


def test_ports_come_free_and_are_taken() -> None:
    port = (ContainerPort(container_port=80, host_port=80),)
    web = pod("web", on="a", ports=port)
    snapshot = cluster([node("a"), node("b")], [web]).snapshot()
    gone = AssignedPod(key("web"), "uid-web", "a", {}, shape_of(web))
    other = with_changes(snapshot, removed=[gone], added=[but(gone, node="b")])
    assert (list(snapshot.used_ports), list(other.used_ports)) == ([0], [1])


def test_who_was_only_promised_a_place_is_counted_with_the_others_and_left_out() -> None:
    web = {"app": "web"}
    nodes = [node("a"), node("b")]
    snapshot = cluster(nodes, [pod("x", on="a", labels=web)]).snapshot()
    crowd = PodSelection((PodSelector((), ("default",)),))
    kept = with_changes(snapshot, added=[assigned_pod("y", "b", app="web")], nominated=True)
    assert (snapshot.pod_index.without_nominated, kept.pod_index.without_nominated) == (
        snapshot.pod_index,
        snapshot.pod_index,
    )
    assert kept.pod_index.count_per_node(crowd).tolist() == [1, 1]
    beside = with_changes(kept, added=[assigned_pod("z", "b", app="web")])
    assert beside.pod_index.count_per_node(crowd).tolist() == [1, 2]
    assert beside.pod_index.without_nominated.count_per_node(crowd).tolist() == [1, 1]
    everybody = with_changes(beside, removed=list(kept.pod_index.assigned_pods()))
    assert everybody.pod_index.count_per_node(crowd).tolist() == [0, 1]
    assert everybody.pod_index.without_nominated.count_per_node(crowd).tolist() == [0, 1]


def test_crowds_are_counted_anew_and_the_old_ones_stay() -> None:
    web = {"app": "web"}
    snapshot = cluster([node("a"), node("b")], [pod("x", on="a", labels=web)]).snapshot()
    crowd = PodSelection((PodSelector((), ("default",)),))
    gone, come = assigned_pod("x", "a", app="web"), assigned_pod("y", "b", app="web")
    other = with_changes(snapshot, removed=[gone], added=[come])
    assert other.pod_index.count_per_node(crowd).tolist() == [0, 1]
    assert snapshot.pod_index.count_per_node(crowd).tolist() == [1, 0]
    assert [other.pod_index.node_of(key(name)) for name in "xy"] == ["", "b"]
    assert [one.key.name for one in other.pod_index.assigned_pods()] == ["y"]
