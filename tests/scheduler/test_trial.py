"""Placing on paper: what a trial does is seen by itself alone."""

from __future__ import annotations

from collections import Counter

from phalanx.api.core import Toleration
from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.policy import DEFAULT
from phalanx.scheduler.trial import Trial
from tests.scheduler.builders import cluster, key, member, node, pod

SMALL, LARGE = member(pod("s", cpu="1")), member(pod("l", cpu="3"))


def test_each_step_sees_the_ones_before() -> None:
    trial = Trial(cluster([node("a", cpu="2"), node("b", cpu="2")]).snapshot(), DEFAULT, ())
    assert [trial.place(SMALL) for _ in range(4)] == [0, 1, 0, 1]
    assert isinstance(trial.place(SMALL), Refusal)


def test_shapes_see_each_other() -> None:
    trial = Trial(cluster([node("a"), node("b", cpu="3")]).snapshot(), DEFAULT, ())
    assert [trial.place(LARGE), trial.place(LARGE)] == [0, 1]
    assert trial.place(SMALL) == 0
    refusal = trial.place(SMALL)
    assert isinstance(refusal, Refusal)
    assert refusal.counts == (("Insufficient cpu", 2),)


def test_a_node_that_refuses_a_shape_is_not_offered_because_another_shape_touched_it() -> None:
    stubborn = member(pod("l", cpu="3", tolerations=(Toleration("", "Exists"),)))
    cache = cluster([node("a", cordoned=True), node("b", cpu="1")])
    trial = Trial(cache.snapshot(), DEFAULT, ())
    assert trial.place(stubborn) == 0
    assert trial.place(SMALL) == 1
    assert isinstance(trial.place(SMALL), Refusal)


def test_a_shape_that_was_refused_stays_refused() -> None:
    trial = Trial(cluster([node("a", cpu="1")]).snapshot(), DEFAULT, ())
    assert trial.refused(LARGE) is None
    refusal = trial.place(LARGE)
    assert isinstance(refusal, Refusal)
    assert trial.place(LARGE) is refusal
    assert trial.refused(LARGE) is refusal
    assert trial.refused(SMALL) is None


def test_another_trial_begins_from_the_snapshot() -> None:
    snapshot = cluster([node("a", cpu="1")]).snapshot()
    assert Trial(snapshot, DEFAULT, ()).place(SMALL) == 0
    assert Trial(snapshot, DEFAULT, ()).place(SMALL) == 0


def test_equal_pods_are_one_class_although_their_service_spreads_them() -> None:
    names = [f"n{n}" for n in range(4)]
    cache = cluster([node(name, {"kubernetes.io/hostname": name}) for name in names])
    cache.service(key("web"), {"app": "web"})
    snapshot = cache.snapshot()
    equals = [member(pod(f"p{n}", labels={"app": "web"}, cpu="100m")) for n in range(8)]
    trial = Trial(snapshot, DEFAULT, equals)
    assert Counter(trial.place(one) for one in equals) == dict.fromkeys(range(4), 2)
    assert len(snapshot.views) == 1
