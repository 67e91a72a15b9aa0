"""Placing on paper: what a trial does is seen by itself alone."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given

from phalanx.api.core import Toleration
from phalanx.scheduler.cluster import node_class as spots
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.placement import node_scores as rankings
from phalanx.scheduler.placement import node_scores as views
from phalanx.scheduler.placement.group_placement import sort_members
from phalanx.scheduler.placement.placement_simulation import PlacementSimulation
from phalanx.scheduler.policy import DEFAULT_POLICY
from tests.scheduler.builders import cluster, key, member, node, pod
from tests.scheduler.strategies import Situation, situations

SMALL, LARGE = member(pod("s", cpu="1")), member(pod("l", cpu="3"))


def test_each_step_sees_the_ones_before() -> None:
    trial = PlacementSimulation(
        cluster([node("a", cpu="2"), node("b", cpu="2")]).snapshot(), DEFAULT_POLICY, ()
    )
    assert [trial.place(SMALL) for _ in range(4)] == [0, 1, 0, 1]
    assert isinstance(trial.place(SMALL), Refusal)


def test_shapes_see_each_other() -> None:
    trial = PlacementSimulation(
        cluster([node("a"), node("b", cpu="3")]).snapshot(), DEFAULT_POLICY, ()
    )
    assert [trial.place(LARGE), trial.place(LARGE)] == [0, 1]
    assert trial.place(SMALL) == 0
    refusal = trial.place(SMALL)
    assert isinstance(refusal, Refusal)
    assert refusal.counts == (("Insufficient cpu", 2),)


def test_a_node_that_another_shape_touched_hides_none_behind_it() -> None:
    nodes = [node("a", cpu="10"), node("b", cpu="8"), node("c", cpu="8")]
    trial = PlacementSimulation(cluster(nodes).snapshot(), DEFAULT_POLICY, ())
    middling = member(pod("m", cpu="2"))
    assert [trial.place(middling), trial.place(SMALL), trial.place(middling)] == [0, 1, 2]


def test_a_node_that_refuses_a_shape_is_not_offered_because_another_shape_touched_it() -> None:
    stubborn = member(pod("l", cpu="3", tolerations=(Toleration("", "Exists"),)))
    cache = cluster([node("a", cordoned=True), node("b", cpu="1")])
    trial = PlacementSimulation(cache.snapshot(), DEFAULT_POLICY, ())
    assert trial.place(stubborn) == 0
    assert trial.place(SMALL) == 1
    assert isinstance(trial.place(SMALL), Refusal)


def test_a_shape_that_was_refused_stays_refused() -> None:
    trial = PlacementSimulation(cluster([node("a", cpu="1")]).snapshot(), DEFAULT_POLICY, ())
    assert trial.refusal_of(LARGE) is None
    refusal = trial.place(LARGE)
    assert isinstance(refusal, Refusal)
    assert trial.place(LARGE) is refusal
    assert trial.refusal_of(LARGE) is refusal
    assert trial.refusal_of(SMALL) is None


def test_a_refusal_tells_of_the_moment_when_it_was_met() -> None:
    trial = PlacementSimulation(
        cluster([node("a", cpu="2", pods="1")]).snapshot(), DEFAULT_POLICY, ()
    )
    assert trial.place_alike([LARGE]) == []
    assert trial.place(SMALL) == 0
    refusal = trial.refusal_of(LARGE)
    assert refusal is not None
    assert refusal.counts == (("Insufficient cpu", 1),)


def test_a_node_that_others_touched_twice_is_offered_once() -> None:
    trial = PlacementSimulation(cluster([node("a", cpu="2")]).snapshot(), DEFAULT_POLICY, ())
    assert trial.place_alike([SMALL]) == [0]
    assert trial.place_alike([member(pod("z"))] * 2) == [0, 0]
    assert trial.place_alike([SMALL] * 3) == [0]


@given(situations())
def test_pods_that_are_alike_go_where_they_go_one_by_one(situation: Situation) -> None:
    snapshot, members = situation.cache().snapshot(), sort_members(situation.entity.members)
    together, apart = (PlacementSimulation(snapshot, DEFAULT_POLICY, members) for _ in range(2))
    for run in together.group_alike(members):
        nodes = together.place_alike(run)
        answers = [apart.place(one) for one in run]
        assert nodes == answers[: len(nodes)]
        assert all(answer == together.refusal_of(run[-1]) for answer in answers[len(nodes) :])


def test_another_trial_begins_from_the_snapshot() -> None:
    snapshot = cluster([node("a", cpu="1")]).snapshot()
    assert PlacementSimulation(snapshot, DEFAULT_POLICY, ()).place(SMALL) == 0
    assert PlacementSimulation(snapshot, DEFAULT_POLICY, ()).place(SMALL) == 0


def test_equal_pods_are_one_class_although_their_service_spreads_them() -> None:
    names = [f"n{n}" for n in range(4)]
    cache = cluster([node(name, {"kubernetes.io/hostname": name}) for name in names])
    cache.update_service(key("web"), {"app": "web"})
    snapshot = cache.snapshot()
    equals = [member(pod(f"p{n}", labels={"app": "web"}, cpu="100m")) for n in range(8)]
    trial = PlacementSimulation(snapshot, DEFAULT_POLICY, equals)
    assert Counter(trial.place(one) for one in equals) == dict.fromkeys(range(4), 2)
    assert len(snapshot.node_scores) == 1


@given(situations())
def test_how_far_rankings_are_sorted_and_what_is_remembered_of_spots_makes_no_difference(
    situation: Situation,
) -> None:
    usual = decide(situation.entity, situation.cache().snapshot(), DEFAULT_POLICY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rankings, "_STRIDE", 1)
        patch.setattr(spots, "_LIMIT", 2)
        patch.setattr(views, "_NODE_CLASSES_LIMIT", 2)
        assert decide(situation.entity, situation.cache().snapshot(), DEFAULT_POLICY) == usual


def test_a_trial_goes_on_where_the_ranking_was_not_sorted_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rankings, "_STRIDE", 2)
    snapshot = cluster([node(f"n{n}", cpu=str(9 - n)) for n in range(7)]).snapshot()
    large = [member(pod(f"p{n}", cpu="3")) for n in range(7)]
    trial = PlacementSimulation(snapshot, DEFAULT_POLICY, large)
    placed = [trial.place(one) for one in large]
    again = PlacementSimulation(snapshot, DEFAULT_POLICY, large)
    assert [again.place(one) for one in large] == placed
    assert set(range(7)) >= set(placed) > {0, 1, 2}
