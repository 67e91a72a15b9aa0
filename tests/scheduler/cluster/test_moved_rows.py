"""Snapshots whose rows were moved for added and removed nodes equal snapshots built anew."""

from __future__ import annotations

import gc
import random
import weakref
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.core import ContainerPort, Node, Pod
from phalanx.api.meta import Key
from phalanx.api.selectors import LabelRequirement
from phalanx.scheduler.cluster import cache as caches
from phalanx.scheduler.cluster import node_index
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.node_index import NodeIndex
from phalanx.scheduler.cluster.peer_constraints import PodSelector
from phalanx.scheduler.cluster.pod_index import PodSelection
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.placement.node_scores import NO_NODE, NODE_SCORES, node_scores_of
from phalanx.scheduler.policy import DEFAULT_POLICY
from tests.scheduler.builders import alone, cluster, key, node, pod
from tests.scheduler.configurations import policy
from tests.scheduler.strategies import nodes, pods

REQUIREMENTS = [
    LabelRequirement("disk", "in", frozenset({"ssd", "hdd"})),
    LabelRequirement("zone", "notin", frozenset({"a"})),
    LabelRequirement("zone", "exists"),
    LabelRequirement("disk", "absent"),
    LabelRequirement("cores", "gt", frozenset({"8"})),
    LabelRequirement("cores", "lt", frozenset({"16"})),
]
TOPOLOGY_KEYS = ["zone", "disk", "kubernetes.io/hostname", "zone+disk"]
IMAGES = ["web:latest", "web:1", "none:1"]
SELECTION = PodSelection((PodSelector((), ("default",)),))
SHAPES = [
    shape_of(one)
    for one in (
        pod("s", cpu="500m"),
        pod("s", cpu="1", requests={"example.com/gpu": "1"}, image="web"),
        pod("s", selector={"disk": "ssd"}, image="web:1", ports=(ContainerPort(80, 80),)),
    )
]


def describe(snapshot: Snapshot) -> dict[str, object]:
    """Everything that filters, scores and placement read of a snapshot, by the names of nodes."""
    names = snapshot.names
    domains = {
        label: {
            placement.value: [names[i] for i in placement.nodes]
            for placement in snapshot.domains(label).placements
        }
        for label in TOPOLOGY_KEYS
    }
    scores = [node_scores_of(snapshot, DEFAULT_POLICY, shape) for shape in SHAPES]
    return {
        "names": list(names),
        "rows": [snapshot.index[name] for name in names],
        "index": dict(snapshot.index.items()),
        "labels": list(snapshot.labels),
        "allocatable": snapshot.allocatable.tolist(),
        "requested": snapshot.requested.tolist(),
        "nonzero": snapshot.nonzero_requested.tolist(),
        "classes": [snapshot.node_class(i).requested for i in range(len(snapshot))],
        "ports": snapshot.used_ports,
        "cordoned": snapshot.cordoned.tolist(),
        "taints": [list(snapshot.taints)[i] for i in snapshot.taint_class],
        "masks": [snapshot.nodes_matching(one).tolist() for one in REQUIREMENTS],
        "images": [snapshot.image_sizes(image).tolist() for image in IMAGES],
        "domains": domains,
        "ids": [snapshot.domains(label).ids.tolist() for label in TOPOLOGY_KEYS],
        "values": [snapshot.domains(label).values for label in TOPOLOGY_KEYS],
        "allowed": [one.allowed_nodes.tolist() for one in scores],
        "keys": [[min(k, NO_NODE) for k in one.keys.tolist()] for one in scores],
        "best": [one.sorted_keys.keys_between(0, 99) for one in scores],
        "counts": snapshot.pod_index.count_per_node(SELECTION).tolist(),
    }


def rebuild(known: dict[str, Node], running: dict[Key, Pod], columns: list[str]) -> Snapshot:
    cache = SchedulerCache()
    cache._resource_row(dict.fromkeys(columns, 0))
    for name, one in known.items():
        cache.update_node(name, one)
    for where, bound in running.items():
        cache.update_pod(where, bound)
    return cache.snapshot()


@pytest.mark.parametrize("limit", [0, 10_000])
@given(st.data())
def test_moved_rows_equal_a_new_snapshot(limit: int, data: st.DataObject) -> None:
    with patch.object(node_index, "_COMPLETE_INDEX_LIMIT", limit):
        change_nodes(data)


def change_nodes(data: st.DataObject) -> None:
    """Change nodes and pods at random, and compare with new snapshots."""
    names = [f"n{i}" for i in range(12)]
    known = {name: data.draw(nodes(name)) for name in names[::2]}
    running: dict[Key, Pod] = {}
    cache = cluster(known.values())
    describe(cache.snapshot())
    for step in range(data.draw(st.integers(1, 8))):
        for _ in range(data.draw(st.integers(1, 2))):
            name = data.draw(st.sampled_from(names))
            change = data.draw(st.sampled_from(["node", "node", "gone", "pod", "end"]))
            if change == "node":
                known[name] = data.draw(nodes(name))
                cache.update_node(name, known[name])
            elif change == "gone":
                known.pop(name, None)
                cache.update_node(name, None)
            elif change == "pod":
                one = data.draw(pods(f"p{step}", "", name))
                running[one.metadata.key] = one
                cache.update_pod(one.metadata.key, one)
            elif running:
                gone = data.draw(st.sampled_from(sorted(running)))
                del running[gone]
                cache.update_pod(gone, None)
        snapshot = cache.snapshot()
        fresh = rebuild(known, running, list(snapshot.columns))
        # Unread values must be right too when they are carried over twice or not at all.
        if data.draw(st.booleans()):
            assert describe(snapshot) == describe(fresh)
            assert cache.check() == []
    assert describe(cache.snapshot()) == describe(rebuild(known, running, list(snapshot.columns)))


def test_few_changed_nodes_move_rows_and_many_rebuild_the_snapshot() -> None:
    cache = cluster([node(f"n{i}") for i in range(8)])
    first = cache.snapshot()
    cache.update_node("n3", None)
    cache.update_node("n31", node("n31"))
    second = cache.snapshot()
    assert second is not first
    assert second.previous is not None
    assert second.previous.snapshot is first
    assert second.previous.rows.tolist() == [0, 1, 2, -1, 4, 5, 6, 7]
    for i in range(3):
        cache.update_node(f"m{i}", node(f"m{i}"))
    assert cache.snapshot().previous is None


def test_a_new_resource_rebuilds_the_snapshot() -> None:
    cache = cluster([node(f"n{i}") for i in range(8)])
    cache.snapshot()
    cache.update_node("gpu", node("gpu", allocatable={"example.com/gpu": 4}))
    snapshot = cache.snapshot()
    assert snapshot.previous is None
    assert snapshot.allocatable[0, snapshot.columns["example.com/gpu"]] == 4


def test_scores_are_taken_over_and_unread_ones_are_dropped() -> None:
    cache = cluster([node(f"n{i}") for i in range(8)])
    used, unused = SHAPES[:2]
    kept = node_scores_of(cache.snapshot(), DEFAULT_POLICY, used)
    node_scores_of(cache.snapshot(), DEFAULT_POLICY, unused)
    cache.update_node("n8", node("n8"))
    assert node_scores_of(cache.snapshot(), DEFAULT_POLICY, used) is kept
    assert list(NODE_SCORES.of(cache.snapshot())) == [(DEFAULT_POLICY, used)]
    cache.update_node("n9", node("n9"))
    assert node_scores_of(cache.snapshot(), DEFAULT_POLICY, used) is kept
    fresh = node_scores_of(cache.snapshot(), DEFAULT_POLICY, unused)
    assert fresh.keys.shape == (10,)


def test_a_node_that_changes_later_ends_the_carrying_over() -> None:
    cache = cluster([node(f"n{i}", {"disk": "ssd"}) for i in range(8)])
    cache.snapshot().nodes_matching(REQUIREMENTS[0])
    cache.update_node("n8", node("n8"))
    cache.snapshot()
    cache.update_node("n0", node("n0"))
    assert cache.snapshot().nodes_matching(REQUIREMENTS[0]).tolist() == [False] + [True] * 7 + [
        False
    ]


def test_snapshots_before_the_previous_one_are_freed_at_once() -> None:
    cache = cluster([node(f"n{i}") for i in range(8)])
    first = cache.snapshot()
    node_scores_of(first, DEFAULT_POLICY, SHAPES[0])
    released = weakref.ref(first)
    del first
    gc.disable()
    try:
        for i in range(8, 11):
            cache.update_node(f"n{i}", node(f"n{i}"))
            node_scores_of(cache.snapshot(), DEFAULT_POLICY, SHAPES[0])
        assert released() is None
    finally:
        gc.enable()


def test_pods_that_wait_for_their_node_are_counted_when_it_comes() -> None:
    cache = cluster([node(f"n{i}") for i in range(8)])
    cache.snapshot().pod_index.count_per_node(SELECTION)
    for name in ("early", "gone"):
        one = pod(name, on="later", cpu="1")
        cache.update_pod(one.metadata.key, one)
    cache.snapshot()
    cache.update_pod(key("gone"), None)
    cache.update_node("later", node("later"))
    snapshot = cache.snapshot()
    assert snapshot.pod_index.count_per_node(SELECTION).tolist() == [1] + [0] * 8
    assert cache.check() == []


def test_index_knows_rows_and_names_that_are_not_there() -> None:
    index = NodeIndex(["a", "c", "d"])
    assert (index["c"], index.get("d"), index.get("b"), index.get("e", -1)) == (1, 2, None, -1)
    assert "a" in index
    assert "b" not in index
    assert "z" not in index
    assert len(index) == 3
    assert list(index) == ["a", "c", "d"]
    assert dict(index.items()) == {"a": 0, "c": 1, "d": 2}
    with pytest.raises(KeyError):
        index["b"]


# ---- pinned pods ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_decision_about_a_pinned_pod_reads_no_other_node(seed: int) -> None:
    rng, hostname = random.Random(seed), "kubernetes.io/hostname"
    cache = cluster([node(f"n{i}", {hostname: f"n{i}"}) for i in range(20)])
    for number in range(30):
        one = pod(f"p{number}", selector={hostname: f"n{rng.randrange(20)}"}, cpu="500m")
        snapshot = cache.snapshot()
        decision = decide(alone(one), snapshot, DEFAULT_POLICY)
        if isinstance(decision, Placed):
            assert decision.bindings[0].node == one.spec.node_selector[hostname]
            assert NODE_SCORES.of(snapshot) == {}
            bound = pod(f"p{number}", on=decision.bindings[0].node, cpu="500m")
            cache.update_pod(bound.metadata.key, bound)


def test_a_profile_without_node_affinity_pins_no_pod() -> None:
    nodes = [node("a", cpu="1"), node("b", {"kubernetes.io/hostname": "b"}, cpu="0")]
    rules = policy({"plugins": {"filter": {"disabled": [{"name": "NodeAffinity"}]}}})
    one = alone(pod("p", selector={"kubernetes.io/hostname": "b"}, cpu="1"))
    decision = decide(one, cluster(nodes).snapshot(), rules)
    assert isinstance(decision, Placed)
    assert decision.bindings[0].node == "a"


def test_moving_is_limited_by_the_number_of_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "_MAX_MOVED_NODES", 0)
    cache = cluster([node(f"n{i}") for i in range(8)])
    cache.snapshot()
    cache.update_node("n8", node("n8"))
    assert cache.snapshot().previous is None
