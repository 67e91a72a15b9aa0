"""Node classes: nodes with equal resources and load share one."""

from __future__ import annotations

import pytest

from phalanx.api.core import ContainerPort
from phalanx.scheduler.cluster import snapshot as snapshot_module
from phalanx.scheduler.cluster.pod_shape import HostPort, RequestVector, shape_of
from phalanx.scheduler.cluster.snapshot import CPU, MEMORY, PODS, NodeClassPool
from phalanx.scheduler.placement import node_scores as node_scores_module
from phalanx.scheduler.placement.node_scores import NODE_SCORES, node_scores_of
from phalanx.scheduler.placement.placement_simulation import PlacementSimulation
from phalanx.scheduler.plugins.load_scoring import MANY_NODES, Arithmetic, NodeLoad
from phalanx.scheduler.plugins.plugin import LoadScore
from phalanx.scheduler.policy import DEFAULT_POLICY, SchedulerPolicy, WeightedScore
from tests.scheduler.builders import cluster, member, node, pod

COLUMNS = {"cpu": CPU, "memory": MEMORY, "pods": PODS}
ROW = (4000, 1 << 30, 10, 500, 1 << 20, 1, 600, 2 << 20)
HTTP = HostPort("0.0.0.0", "TCP", 80)


def request_vector(**amounts: str) -> RequestVector:
    return shape_of(pod("p", requests=dict(amounts))).request_vector(COLUMNS)


def test_equal_rows_share_one_node_class() -> None:
    pool = NodeClassPool()
    one = pool.intern(ROW, 3, ())
    assert pool.intern((*ROW,), 3, ()) is one
    assert pool.intern((*ROW[:-1], 0), 3, ()) is not one
    assert pool.intern(ROW, 3, (HTTP,)) is not one


def test_a_node_class_has_allocatable_requested_and_nonzero_requested_amounts() -> None:
    node_class = NodeClassPool().intern(ROW, 3, (HTTP,))
    assert (
        node_class.allocatable,
        node_class.requested,
        node_class.nonzero_requested,
        node_class.used_ports,
    ) == (
        ROW[:3],
        ROW[3:6],
        ROW[6:],
        (HTTP,),
    )


def test_adding_a_pod_changes_the_node_class() -> None:
    pool = NodeClassPool()
    web = shape_of(pod("web", cpu="1", memory="1Mi", ports=(ContainerPort(80, 80),)))
    after = pool.after_adding(pool.intern(ROW, 3, ()), web.request_vector(COLUMNS))
    assert after is pool.intern((*ROW[:3], 1500, 2 << 20, 2, 1600, 3 << 20), 3, (HTTP,))


def test_the_order_of_added_pods_does_not_matter() -> None:
    pool = NodeClassPool()
    start, one, two = (
        pool.intern(ROW, 3, ()),
        request_vector(cpu="1", memory="1Mi"),
        request_vector(cpu="250m"),
    )
    assert pool.after_adding(pool.after_adding(start, one), two) is pool.after_adding(
        pool.after_adding(start, two), one
    )


def test_bounded_memos_do_not_change_placements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshot = cluster([node("a"), node("b", cpu="3"), node("c", cpu="5")]).snapshot()
    members = [member(pod(f"p{n}", cpu="1")) for n in range(9)]

    def place_all() -> list[object]:
        simulation = PlacementSimulation(snapshot, DEFAULT_POLICY, members)
        return [simulation.place(one) for one in members]

    before = place_all()
    monkeypatch.setattr(snapshot_module, "_POOL_LIMIT", 2)
    monkeypatch.setattr(node_scores_module, "_NODE_CLASSES_LIMIT", 2)
    NODE_SCORES.of(snapshot).clear()
    assert place_all() == before


def test_equal_nodes_are_scored_once() -> None:
    scored: list[NodeLoad] = []

    def score(node: NodeLoad, arithmetic: Arithmetic) -> int:
        if arithmetic is not MANY_NODES:
            scored.append(node)
        return 1

    counting = LoadScore(lambda shape, columns: score)
    policy = SchedulerPolicy(scores=(WeightedScore("counting", 1, counting),))
    snapshot = cluster([node(f"n{n:02}") for n in range(20)]).snapshot()
    scores = node_scores_of(snapshot, policy, shape_of(pod("p", cpu="1")))
    keys = [scores.key_of(i, scores.after_placement[snapshot.node_class(i)][0]) for i in range(20)]
    assert keys == sorted(set(keys))
    # As they are, and with a pod on them.
    assert len(scored) == 2
