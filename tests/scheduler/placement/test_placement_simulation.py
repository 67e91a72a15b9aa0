"""Placement simulations: assignments are seen by their own simulation only."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given

from phalanx.api.core import Toleration
from phalanx.scheduler.cluster import snapshot as snapshot_module
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.placement import node_scores as node_scores_module
from phalanx.scheduler.placement.group_placement import sort_members
from phalanx.scheduler.placement.node_scores import NODE_SCORES
from phalanx.scheduler.placement.placement_simulation import PlacementSimulation
from phalanx.scheduler.policy import DEFAULT_POLICY
from tests.scheduler.builders import cluster, key, member, node, pod
from tests.scheduler.strategies import Situation, situations

SMALL, LARGE = member(pod("s", cpu="1")), member(pod("l", cpu="3"))


def test_each_assignment_sees_the_previous_ones() -> None:
    simulation = PlacementSimulation(
        cluster([node("a", cpu="2"), node("b", cpu="2")]).snapshot(), DEFAULT_POLICY, ()
    )
    assert [simulation.place(SMALL) for _ in range(4)] == [0, 1, 0, 1]
    assert isinstance(simulation.place(SMALL), Refusal)


def test_assignments_of_one_shape_are_seen_by_another() -> None:
    simulation = PlacementSimulation(
        cluster([node("a"), node("b", cpu="3")]).snapshot(), DEFAULT_POLICY, ()
    )
    assert [simulation.place(LARGE), simulation.place(LARGE)] == [0, 1]
    assert simulation.place(SMALL) == 0
    refusal = simulation.place(SMALL)
    assert isinstance(refusal, Refusal)
    assert refusal.counts == (("Insufficient cpu", 2),)


def test_a_node_that_another_shape_touched_does_not_hide_later_nodes() -> None:
    nodes = [node("a", cpu="10"), node("b", cpu="8"), node("c", cpu="8")]
    simulation = PlacementSimulation(cluster(nodes).snapshot(), DEFAULT_POLICY, ())
    middling = member(pod("m", cpu="2"))
    assert [simulation.place(middling), simulation.place(SMALL), simulation.place(middling)] == [
        0,
        1,
        2,
    ]


def test_a_node_that_rejects_a_shape_stays_rejected_when_another_shape_touches_it() -> None:
    tolerant = member(pod("l", cpu="3", tolerations=(Toleration("", "Exists"),)))
    cache = cluster([node("a", cordoned=True), node("b", cpu="1")])
    simulation = PlacementSimulation(cache.snapshot(), DEFAULT_POLICY, ())
    assert simulation.place(tolerant) == 0
    assert simulation.place(SMALL) == 1
    assert isinstance(simulation.place(SMALL), Refusal)


def test_a_refused_shape_stays_refused() -> None:
    simulation = PlacementSimulation(cluster([node("a", cpu="1")]).snapshot(), DEFAULT_POLICY, ())
    assert simulation.refusal_of(LARGE) is None
    refusal = simulation.place(LARGE)
    assert isinstance(refusal, Refusal)
    assert simulation.place(LARGE) is refusal
    assert simulation.refusal_of(LARGE) is refusal
    assert simulation.refusal_of(SMALL) is None


def test_a_refusal_describes_the_moment_of_the_attempt() -> None:
    simulation = PlacementSimulation(
        cluster([node("a", cpu="2", pods="1")]).snapshot(), DEFAULT_POLICY, ()
    )
    assert simulation.place_alike([LARGE]) == []
    assert simulation.place(SMALL) == 0
    refusal = simulation.refusal_of(LARGE)
    assert refusal is not None
    assert refusal.counts == (("Insufficient cpu", 1),)


def test_a_node_that_other_shapes_touched_twice_is_ranked_once() -> None:
    simulation = PlacementSimulation(cluster([node("a", cpu="2")]).snapshot(), DEFAULT_POLICY, ())
    assert simulation.place_alike([SMALL]) == [0]
    assert simulation.place_alike([member(pod("z"))] * 2) == [0, 0]
    assert simulation.place_alike([SMALL] * 3) == [0]


@given(situations())
def test_equal_pods_are_placed_as_if_one_by_one(situation: Situation) -> None:
    snapshot, members = situation.cache().snapshot(), sort_members(situation.entity.members)
    together, apart = (PlacementSimulation(snapshot, DEFAULT_POLICY, members) for _ in range(2))
    for run in together.group_alike(members):
        nodes = together.place_alike(run)
        answers = [apart.place(one) for one in run]
        assert nodes == answers[: len(nodes)]
        assert all(answer == together.refusal_of(run[-1]) for answer in answers[len(nodes) :])


def test_another_simulation_begins_from_the_snapshot() -> None:
    snapshot = cluster([node("a", cpu="1")]).snapshot()
    assert PlacementSimulation(snapshot, DEFAULT_POLICY, ()).place(SMALL) == 0
    assert PlacementSimulation(snapshot, DEFAULT_POLICY, ()).place(SMALL) == 0


def test_equal_pods_share_node_scores_although_their_service_spreads_them() -> None:
    names = [f"n{n}" for n in range(4)]
    cache = cluster([node(name, {"kubernetes.io/hostname": name}) for name in names])
    cache.update_service(key("web"), {"app": "web"})
    snapshot = cache.snapshot()
    equals = [member(pod(f"p{n}", labels={"app": "web"}, cpu="100m")) for n in range(8)]
    simulation = PlacementSimulation(snapshot, DEFAULT_POLICY, equals)
    assert Counter(simulation.place(one) for one in equals) == dict.fromkeys(range(4), 2)
    assert len(NODE_SCORES.of(snapshot)) == 1


@given(situations())
def test_sort_stride_and_memo_limits_do_not_change_decisions(
    situation: Situation,
) -> None:
    usual = decide(situation.entity, situation.cache().snapshot(), DEFAULT_POLICY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_scores_module, "_STRIDE", 1)
        patch.setattr(snapshot_module, "_POOL_LIMIT", 2)
        patch.setattr(node_scores_module, "_NODE_CLASSES_LIMIT", 2)
        assert decide(situation.entity, situation.cache().snapshot(), DEFAULT_POLICY) == usual


def test_a_simulation_sorts_more_keys_when_it_needs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_scores_module, "_STRIDE", 2)
    snapshot = cluster([node(f"n{n}", cpu=str(9 - n)) for n in range(7)]).snapshot()
    large = [member(pod(f"p{n}", cpu="3")) for n in range(7)]
    simulation = PlacementSimulation(snapshot, DEFAULT_POLICY, large)
    placed = [simulation.place(one) for one in large]
    again = PlacementSimulation(snapshot, DEFAULT_POLICY, large)
    assert [again.place(one) for one in large] == placed
    assert set(range(7)) >= set(placed) > {0, 1, 2}
