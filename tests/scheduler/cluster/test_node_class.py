"""Spots: nodes that are equal and equally full are one."""

from __future__ import annotations

import numpy as np
import pytest

from phalanx.api.core import ContainerPort
from phalanx.scheduler.cluster import node_class as spots
from phalanx.scheduler.cluster.node_class import NodeClass, NodeClassPool, NodeTable
from phalanx.scheduler.cluster.pod_shape import RequestVector, shape_of
from phalanx.scheduler.cluster.snapshot import CPU, MEMORY, PODS, HostPort, IntArray
from phalanx.scheduler.placement import node_scores as views
from phalanx.scheduler.placement.node_scores import node_scores_of
from phalanx.scheduler.placement.placement_simulation import PlacementSimulation
from phalanx.scheduler.plugins.scores import ScorePlugin
from phalanx.scheduler.policy import DEFAULT_POLICY, SchedulerPolicy
from tests.scheduler.builders import cluster, member, node, pod

COLUMNS = {"cpu": CPU, "memory": MEMORY, "pods": PODS}
ROW = (4000, 1 << 30, 10, 500, 1 << 20, 1, 600, 2 << 20)
HTTP = HostPort("0.0.0.0", "TCP", 80)


def request_vector(**amounts: str) -> RequestVector:
    return shape_of(pod("p", asks=dict(amounts))).request_vector(COLUMNS)


def test_equal_rows_are_one_spot_and_others_are_not() -> None:
    known = NodeClassPool()
    one = known.intern(ROW, 3, ())
    assert known.intern((*ROW,), 3, ()) is one
    assert known.intern((*ROW[:-1], 0), 3, ()) is not one
    assert known.intern(ROW, 3, (HTTP,)) is not one


def test_a_spot_tells_room_load_and_what_scores_count() -> None:
    spot = NodeClassPool().intern(ROW, 3, (HTTP,))
    assert (spot.allocatable, spot.requested, spot.nonzero_requested, spot.used_ports) == (
        ROW[:3],
        ROW[3:6],
        ROW[6:],
        (HTTP,),
    )


def test_a_pod_makes_another_spot_of_it() -> None:
    known = NodeClassPool()
    web = shape_of(pod("web", cpu="1", memory="1Mi", ports=(ContainerPort(80, 80),)))
    after = known.after_adding(known.intern(ROW, 3, ()), web.request_vector(COLUMNS))
    assert after is known.intern((*ROW[:3], 1500, 2 << 20, 2, 1600, 3 << 20), 3, (HTTP,))


def test_in_which_order_pods_come_does_not_matter() -> None:
    known = NodeClassPool()
    start, one, two = (
        known.intern(ROW, 3, ()),
        request_vector(cpu="1", memory="1Mi"),
        request_vector(cpu="250m"),
    )
    assert known.after_adding(known.after_adding(start, one), two) is known.after_adding(
        known.after_adding(start, two), one
    )


def test_what_is_remembered_is_bounded_and_forgetting_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshot = cluster([node("a"), node("b", cpu="3"), node("c", cpu="5")]).snapshot()
    members = [member(pod(f"p{n}", cpu="1")) for n in range(9)]

    def placed() -> list[object]:
        trial = PlacementSimulation(snapshot, DEFAULT_POLICY, members)
        return [trial.place(one) for one in members]

    before = placed()
    monkeypatch.setattr(spots, "_LIMIT", 2)
    monkeypatch.setattr(views, "_NODE_CLASSES_LIMIT", 2)
    snapshot.node_scores.clear()
    assert placed() == before


class CountingScorer:
    """An opinion that counts how often it is asked about a single node."""

    def __init__(self) -> None:
        self.times = 0

    def score_node(self, node_class: NodeClass) -> int:
        self.times += 1
        return 1

    def score_nodes(self, rows: NodeTable) -> IntArray:
        return np.ones(len(rows.allocatable), np.int64)


def test_equal_nodes_are_judged_once() -> None:
    opinion = CountingScorer()
    policy = SchedulerPolicy(scores=(ScorePlugin("counting", 1, lambda shape, columns: opinion),))
    snapshot = cluster([node(f"n{n:02}") for n in range(20)]).snapshot()
    view = node_scores_of(snapshot, policy, shape_of(pod("p", cpu="1")))
    keys = [view.key_of(i, view.after_placement[snapshot.node_class(i)][0]) for i in range(20)]
    assert keys == sorted(set(keys))
    # As they are, and with a pod on them.
    assert opinion.times == 2
