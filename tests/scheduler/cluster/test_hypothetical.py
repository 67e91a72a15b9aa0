"""Snapshots without some pods and with others."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from phalanx.api.core import Affinity, ContainerPort, Pod, PodAffinity, PodAffinityTerm
from phalanx.api.selectors import LabelRequirement
from phalanx.scheduler.cluster.hypothetical import BULK_THRESHOLD, WorkingSnapshot, with_changes
from phalanx.scheduler.cluster.peer_constraints import PodSelector
from phalanx.scheduler.cluster.pod_index import AssignedPod, PodSelection, selections_of
from phalanx.scheduler.cluster.pod_shape import shape_of
from tests.scheduler.builders import cluster, key, node, pod


def assigned_pod(name: str, on: str, cpu: str = "1", **labels: str) -> AssignedPod:
    made = pod(name, cpu=cpu, labels=labels)
    return AssignedPod(key(name), f"uid-{name}", on, labels, shape_of(made))


def as_assigned(one: Pod) -> AssignedPod:
    meta = one.metadata
    return AssignedPod(meta.key, meta.uid, one.spec.node_name, meta.labels, shape_of(one))


def test_without_changes_the_snapshot_is_returned() -> None:
    snapshot = cluster([node("a")]).snapshot()
    assert with_changes(snapshot) is snapshot


def test_removed_pods_free_resources_and_added_pods_use_them() -> None:
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


def test_bulk_changes_equal_single_changes() -> None:
    snapshot = cluster([node("a"), node("b")], [pod("x", on="a", cpu="9")]).snapshot()
    pods = [assigned_pod(f"p{n}", "abc"[n % 3], str(1 + n % 4)) for n in range(2 * BULK_THRESHOLD)]
    few = snapshot
    for one in pods:
        few = with_changes(few, added=[one])
    many = with_changes(snapshot, added=pods)
    assert np.array_equal(many.requested, few.requested)
    assert np.array_equal(many.nonzero_requested, few.nonzero_requested)
    assert np.array_equal(with_changes(many, removed=pods).requested, snapshot.requested)


def test_pods_on_unknown_nodes_change_nothing() -> None:
    snapshot = cluster([node("a")]).snapshot()
    other = with_changes(
        snapshot, removed=[assigned_pod("x", "gone")], added=[assigned_pod("y", "gone")]
    )
    assert np.array_equal(other.requested, snapshot.requested)


def test_ports_are_freed_and_used() -> None:
    port = (ContainerPort(container_port=80, host_port=80),)
    web = pod("web", on="a", ports=port)
    snapshot = cluster([node("a"), node("b")], [web]).snapshot()
    gone = AssignedPod(key("web"), "uid-web", "a", {}, shape_of(web))
    other = with_changes(snapshot, removed=[gone], added=[replace(gone, node="b")])
    assert (list(snapshot.used_ports), list(other.used_ports)) == ([0], [1])


def test_nominated_pods_are_counted_and_can_be_left_out() -> None:
    web = {"app": "web"}
    nodes = [node("a"), node("b")]
    snapshot = cluster(nodes, [pod("x", on="a", labels=web)]).snapshot()
    selection = PodSelection((PodSelector((), ("default",)),))
    kept = with_changes(snapshot, added=[assigned_pod("y", "b", app="web")], nominated=True)
    assert (snapshot.pod_index.without_nominated, kept.pod_index.without_nominated) == (
        snapshot.pod_index,
        snapshot.pod_index,
    )
    assert kept.pod_index.count_per_node(selection).tolist() == [1, 1]
    with_third = with_changes(kept, added=[assigned_pod("z", "b", app="web")])
    assert with_third.pod_index.count_per_node(selection).tolist() == [1, 2]
    assert with_third.pod_index.without_nominated.count_per_node(selection).tolist() == [1, 1]
    without_assigned = with_changes(with_third, removed=list(kept.pod_index.assigned_pods()))
    assert without_assigned.pod_index.count_per_node(selection).tolist() == [0, 1]
    assert without_assigned.pod_index.without_nominated.count_per_node(selection).tolist() == [0, 1]


def test_counts_of_a_fork_differ_and_those_of_its_origin_stay() -> None:
    web = {"app": "web"}
    snapshot = cluster([node("a"), node("b")], [pod("x", on="a", labels=web)]).snapshot()
    selection = PodSelection((PodSelector((), ("default",)),))
    removed, added = assigned_pod("x", "a", app="web"), assigned_pod("y", "b", app="web")
    other = with_changes(snapshot, removed=[removed], added=[added])
    assert other.pod_index.count_per_node(selection).tolist() == [0, 1]
    assert snapshot.pod_index.count_per_node(selection).tolist() == [1, 0]
    assert [other.pod_index.node_of(key(name)) for name in "xy"] == ["", "b"]
    assert [one.key.name for one in other.pod_index.assigned_pods()] == ["y"]


def test_counting_in_steps_gives_the_counts_of_the_changed_cluster() -> None:
    snapshot = cluster([node("a"), node("b")], [pod("x", on="a", labels={"app": "w"})]).snapshot()
    changed = with_changes(snapshot, added=[assigned_pod("y", "b", app="w")])
    web = PodSelection(
        (PodSelector((LabelRequirement("app", "in", frozenset("w")),), ("default",)),)
    )
    assert list(changed.pod_index.count_in_steps(web))
    assert not list(snapshot.pod_index.count_in_steps(web))
    assert snapshot.pod_index.count_per_node(web).tolist() == [1, 0]
    assert changed.pod_index.count_per_node(web).tolist() == [1, 1]


def test_counts_of_cycles_that_never_use_them_are_not_kept_for_ever() -> None:
    """Most gangs have a selector of their own, and a gang without room for its leader reads no
    count of its workers."""
    index = cluster([node("a")], [pod("x", on="a", labels={"job": "0"})]).snapshot().pod_index
    selections = [
        PodSelection(
            (PodSelector((LabelRequirement("job", "in", frozenset({str(n)})),), ("default",)),)
        )
        for n in range(1000)
    ]
    for selection in selections:
        assert list(index.count_in_steps(selection))
    assert list(index.count_in_steps(selections[0]))
    assert not list(index.count_in_steps(selections[-1]))
    assert index.count_per_node(selections[0]).tolist() == [1]


def test_a_working_snapshot_equals_a_fork_with_the_same_pods() -> None:
    cache = cluster([node(f"n{i}") for i in range(3)], [pod("old", on="n0", cpu="1")])
    snapshot = cache.snapshot()
    pods = [as_assigned(pod(f"p{i}", on=f"n{i % 2}", cpu="1")) for i in range(4)]
    working = WorkingSnapshot(snapshot)
    assert working.snapshot is snapshot
    working.add(pods[:1])
    working.add(pods[1:])
    forked = with_changes(snapshot, added=pods)
    assert np.array_equal(working.snapshot.requested, forked.requested)
    assert np.array_equal(working.snapshot.nonzero_requested, forked.nonzero_requested)
    assert working.snapshot.pod_index.node_of(pods[3].key) == "n1"
    working.truncate(1)
    alone = with_changes(snapshot, added=pods[:1])
    assert np.array_equal(working.snapshot.requested, alone.requested)
    assert working.snapshot.pod_index.node_of(pods[3].key) == ""
    assert snapshot.requested[0, 0] == 1000


def test_a_working_snapshot_counts_added_pods_and_their_terms() -> None:
    term = PodAffinityTerm("kubernetes.io/hostname", {"matchLabels": {"app": "a"}})
    shy = Affinity(pod_anti_affinity=PodAffinity((term,)))
    snapshot = cluster([node("n0"), node("n1")]).snapshot()
    working = WorkingSnapshot(snapshot)
    selection = next(
        selections_of(shape_of(pod("q", labels={"app": "a"}, affinity=shy)).peer_constraints)
    )
    for i in range(2):
        one = pod(f"p{i}", on=f"n{i}", labels={"app": "a"}, affinity=shy)
        working.add([as_assigned(one)])
        counts = working.snapshot.pod_index.count_per_node(selection)
        assert counts.tolist() == [1, i]
    assert sum(map(len, working.snapshot.pod_index.existing_terms.values())) == 2
    working.truncate(0)
    assert working.snapshot.pod_index.count_per_node(selection).tolist() == [0, 0]
    assert working.snapshot.pod_index.existing_terms == {}
