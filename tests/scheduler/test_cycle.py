"""The cycle: all members that a group needs have a node, or none gets one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from phalanx.api.core import Node, Pod
from phalanx.scheduler.cycle import decide, run_cycle
from phalanx.scheduler.decision import ClusterEvent, Decision, Impossible, Placed, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.placement.group_placement import YIELD_INTERVAL, sort_members
from phalanx.scheduler.placement.node_scores import NODE_SCORES
from phalanx.scheduler.policy import DEFAULT_POLICY
from tests.scheduler.builders import alone, basic, cluster, entity, gang, member, node, pod
from tests.scheduler.oracle_agreement import assert_matches_oracle
from tests.scheduler.oracle_settings import OracleSettings
from tests.scheduler.strategies import Situation, situations


def decide_on(one: Entity, nodes: list[Node], running: list[Pod] | None = None) -> Decision:
    return decide(one, cluster(nodes, running or []).snapshot(), DEFAULT_POLICY)


def members(count: int, *, cpu: str = "1") -> list[Pod]:
    return [pod(f"m{i}", "g", cpu=cpu) for i in range(count)]


def placement(decision: Decision) -> dict[str, str]:
    assert isinstance(decision, Placed)
    return {name.name: on for name, _, on in decision.bindings}


def waiting(decision: Decision) -> Waiting:
    assert isinstance(decision, Waiting)
    return decision


def test_a_pod_without_group_is_placed_on_the_best_node() -> None:
    decision = decide_on(alone(pod("p", cpu="1")), [node("a", cpu="1"), node("b")])
    assert placement(decision) == {"p": "b"}
    assert isinstance(decision, Placed)
    assert (decision.group, decision.bindings[0].uid) == (None, "uid-p")


def test_a_pod_without_group_waits_when_no_node_takes_it() -> None:
    decision = waiting(decide_on(alone(pod("p", cpu="9")), [node("a")]))
    assert decision.group is None
    assert decision.pods[0].refusal is not None
    assert decision.pods[0].refusal.counts == (("Insufficient cpu", 1),)


def test_a_gang_that_fits_is_placed_completely() -> None:
    decision = decide_on(entity(gang("g", 3), members(3)), [node("a", cpu="2"), node("b", cpu="2")])
    assert placement(decision) == {"m0": "a", "m1": "b", "m2": "a"}


def test_a_gang_with_one_member_that_does_not_fit_is_not_placed() -> None:
    decision = waiting(decide_on(entity(gang("g", 4), members(4)), [node("a", cpu="3")]))
    assert (decision.quorum, decision.scheduled, decision.remaining) == (4, 3, 0)
    assert [refused.refusal is None for refused in decision.pods] == [True, True, True, False]


def test_the_attempt_ends_as_soon_as_the_quorum_is_out_of_reach() -> None:
    decision = waiting(decide_on(entity(gang("g", 4), members(4)), [node("a", cpu="1")]))
    assert (decision.scheduled, decision.remaining) == (1, 2)


def test_equal_members_that_were_not_tried_share_the_refusal_of_the_tried_one() -> None:
    pods = [*members(4), pod("z", "g")]
    decision = waiting(decide_on(entity(gang("g", 5), pods), [node("a", cpu="1")]))
    refusals = {refused.pod.name: refused.refusal for refused in decision.pods}
    assert refusals["m1"] is refusals["m2"] is refusals["m3"] is not None
    assert refusals["m0"] is refusals["z"] is None
    assert decision.unknown == 1


def test_too_few_members_are_rejected_before_any_is_tried() -> None:
    decision = waiting(decide_on(entity(gang("g", 3), members(2)), [node("a")]))
    assert (decision.scheduled, decision.remaining) == (0, 2)
    assert all(refused.refusal is None for refused in decision.pods)
    assert decision.wakes_on == {ClusterEvent.MEMBER_CHANGED, ClusterEvent.GROUP_CHANGED}


def test_members_beyond_the_quorum_are_placed_if_they_fit_and_leftovers_otherwise() -> None:
    decision = decide_on(entity(gang("g", 2), members(4)), [node("a", cpu="3")])
    assert sorted(placement(decision)) == ["m0", "m1", "m2"]
    assert isinstance(decision, Placed)
    assert [left.pod.name for left in decision.leftovers] == ["m3"]


def test_members_with_a_node_count() -> None:
    running = [pod("old", "g", on="a", cpu="1")]
    late = entity(gang("g", 2), [pod("new", "g", cpu="1")])
    assert placement(decide_on(late, [node("a")], running)) == {"new": "a"}


def test_ended_members_do_not_count() -> None:
    running = [pod("old", "g", on="a", phase="Succeeded")]
    late = entity(gang("g", 2), [pod("new", "g")])
    assert isinstance(decide_on(late, [node("a")], running), Waiting)


def test_a_late_member_that_does_not_fit_waits_although_its_gang_has_quorum() -> None:
    running = [pod("old", "g", on="a", cpu="4")]
    late = entity(gang("g", 1), [pod("new", "g", cpu="1")])
    decision = waiting(decide_on(late, [node("a")], running))
    assert (decision.scheduled, decision.quorum) == (1, 1)


@pytest.mark.parametrize(
    ("quorum", "running", "fits", "placed", "untried"),
    [
        # Enough members fit: all are tried, and those that fit are placed.
        (2, 0, "++", 2, 0),
        (2, 0, "+++", 3, 0),
        (2, 0, "-++", 2, 0),
        (3, 0, "-+++", 3, 0),
        (3, 1, "++", 2, 0),
        (2, 2, "+", 1, 0),
        (2, 2, "-+", 1, 0),
        (None, 0, "--+", 1, 0),
        # Too few members fit: the attempt ends as soon as that is certain.
        (2, 0, "-+", 0, 1),
        (2, 0, "--+", 0, 1),
        (3, 0, "+-+", 0, 1),
        (3, 1, "-+", 0, 1),
        (4, 1, "++", 0, 2),
        (None, 0, "--", 0, 0),
        # No member is placed: members beyond the quorum do not fit.
        (2, 2, "--", 0, 0),
        (None, 1, "-", 0, 0),
    ],
)
def test_members_are_tried_as_long_as_the_quorum_is_in_reach(
    quorum: int | None, running: int, fits: str, placed: int, untried: int
) -> None:
    group = basic("g") if quorum is None else gang("g", quorum)
    placed_before = [pod(f"r{n}", "g", on="a") for n in range(running)]
    wanted = [pod(f"m{n}", "g", cpu="1" if fit == "+" else "99") for n, fit in enumerate(fits)]
    decision = decide_on(entity(group, wanted), [node("a", cpu="9")], placed_before)
    if placed:
        assert isinstance(decision, Placed)
        assert (len(decision.bindings), len(decision.leftovers)) == (placed, len(fits) - placed)
    else:
        assert waiting(decision).remaining == untried


def test_a_basic_group_is_placed_as_far_as_it_fits() -> None:
    decision = decide_on(entity(basic("g"), members(4)), [node("a", cpu="3")])
    assert len(placement(decision)) == 3


def test_a_basic_group_without_a_fitting_member_waits() -> None:
    decision = waiting(decide_on(entity(basic("g"), members(2)), [node("a", cpu="500m")]))
    assert (decision.scheduled, decision.remaining) == (0, 0)
    assert ClusterEvent.POD_GONE in decision.wakes_on


def test_a_small_member_may_fit_after_a_large_member_did_not() -> None:
    pods = [pod("a", "g", cpu="8"), pod("b", "g", cpu="1")]
    decision = decide_on(entity(basic("g"), pods), [node("n")])
    assert placement(decision) == {"b": "n"}


def test_without_nodes_all_entities_wait_for_a_node() -> None:
    decision = waiting(decide_on(entity(gang("g", 2), members(2)), []))
    assert decision.reason == "Unschedulable"
    assert {refused.refusal.total for refused in decision.pods if refused.refusal} == {0}
    assert ClusterEvent.NODE_ADDED in decision.wakes_on


def test_an_impossible_entity_is_not_placed() -> None:
    odd = entity(gang("g", 1, priority=9), members(1))
    assert isinstance(decide_on(odd, [node("a")]), Impossible)


def test_members_are_tried_by_priority_attempts_age_and_name() -> None:
    row = (
        member(pod("f"), 0, 2.0),
        member(pod("e"), 0, 1.0),
        member(pod("d"), 0, 1.0),
        member(pod("c"), 1, 5.0),
        member(pod("b", priority=1), 0, 9.0),
    )
    assert [one.pod.metadata.name for one in sort_members(row)] == ["b", "c", "d", "e", "f"]


def test_a_long_cycle_yields_and_reaches_the_same_decision() -> None:
    large = entity(gang("g", 2 * YIELD_INTERVAL + 1), members(2 * YIELD_INTERVAL + 1, cpu="10m"))
    snapshot = cluster([node(f"n{i}") for i in range(9)]).snapshot()
    cycle = run_cycle(large, snapshot, DEFAULT_POLICY)
    assert [next(cycle), next(cycle)] == [YIELD_INTERVAL, 2 * YIELD_INTERVAL]
    with pytest.raises(StopIteration) as end:
        next(cycle)
    assert end.value.value == decide(large, snapshot, DEFAULT_POLICY)


@given(situations())
def test_the_decision_is_that_of_placing_one_pod_at_a_time(situation: Situation) -> None:
    assert_matches_oracle(situation, DEFAULT_POLICY, OracleSettings())


@given(situations())
def test_deciding_changes_neither_snapshot_nor_node_scores(situation: Situation) -> None:
    snapshot = situation.cache().snapshot()
    requested, nonzero_requested = snapshot.requested.copy(), snapshot.nonzero_requested.copy()
    first = decide(situation.entity, snapshot, DEFAULT_POLICY)
    keys_before = {
        shape: scores.keys.tolist() for shape, scores in NODE_SCORES.of(snapshot).items()
    }
    assert decide(situation.entity, snapshot, DEFAULT_POLICY) == first
    assert np.array_equal(snapshot.requested, requested)
    assert np.array_equal(snapshot.nonzero_requested, nonzero_requested)
    assert {
        shape: scores.keys.tolist() for shape, scores in NODE_SCORES.of(snapshot).items()
    } == keys_before


@given(situations())
def test_a_placed_entity_fits_when_it_is_assumed(situation: Situation) -> None:
    cache = situation.cache()
    before = cache.snapshot().requested > cache.snapshot().allocatable
    for one in situation.entity.members:
        cache.update_pod(one.pod.metadata.key, one.pod)
    decision = decide(situation.entity, cache.snapshot(), DEFAULT_POLICY)
    if isinstance(decision, Placed):
        cache.assume(decision.bindings)
        width = before.shape[1]
        after = (cache.snapshot().requested > cache.snapshot().allocatable)[:, :width]
        assert np.array_equal(after, before)
    assert cache.check() == []
