"""Pieces in an order in which each may be put when its turn comes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from phalanx.api.core import Affinity, Pod, PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from phalanx.scheduler.placement.group_placement import PlacementContext
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.scheduler.search.heuristics import (
    KindAssignment,
    PartialPlacement,
    SequenceFailure,
    find_sequence,
)
from phalanx.scheduler.search.placement_problem import PlacementProblem, build_problem
from tests.scheduler.builders import cluster, entity, gang, node, pod

RACKS = [node(f"n{rack}", {"rack": rack}) for rack in "abc"]


def problem(pods: list[Pod]) -> PlacementProblem:
    snapshot = cluster(RACKS).snapshot()
    found = build_problem(
        PlacementContext(snapshot, DEFAULT_POLICY), entity(gang("g", 1), pods).members, len(pods)
    )
    assert isinstance(found, PlacementProblem)
    return found


def app_pods(app: str, count: int, wants: str = "", *, even: bool = False) -> list[Pod]:
    selector = {"matchLabels": {"app": wants}}
    near = PodAffinity((PodAffinityTerm("rack", selector),))
    spread = TopologySpreadConstraint("rack", "DoNotSchedule", 1, selector)
    together = {"affinity": Affinity(pod_affinity=near)}
    traits: dict[str, Any] = {"spreads": (spread,)} if even else together
    return [
        pod(f"{app}{n}", "g", labels={"app": app}, **traits if wants else {}) for n in range(count)
    ]


def find_valid_sequence(
    one: PlacementProblem, pieces: list[KindAssignment], limit: int = 100
) -> list[KindAssignment] | SequenceFailure:
    found = find_sequence(one, Counter(pieces), len(pieces), limit)
    if not isinstance(found, SequenceFailure):
        board = PartialPlacement(one)
        for piece in found:
            assert board.allows(piece)
            board.assign(piece)
        assert sorted(found) == sorted(pieces)
    return found


def test_who_must_be_near_others_comes_after_them() -> None:
    one = problem([*app_pods("worker", 2, "leader"), *app_pods("leader", 1)])
    leader = KindAssignment(1, 0)
    found = find_valid_sequence(one, [KindAssignment(0, 0), KindAssignment(0, 0), leader])
    assert isinstance(found, list)
    assert found[0] == leader


def test_nobody_is_far_from_those_that_he_must_be_near() -> None:
    one = problem([*app_pods("worker", 1, "leader"), *app_pods("leader", 1)])
    assert (
        find_valid_sequence(one, [KindAssignment(0, 0), KindAssignment(1, 1)])
        is SequenceFailure.IMPOSSIBLE
    )


def test_who_needs_each_other_can_neither_be_first() -> None:
    one = problem([*app_pods("a", 1, "b"), *app_pods("b", 1, "a")])
    assert (
        find_valid_sequence(one, [KindAssignment(0, 0), KindAssignment(1, 0)])
        is SequenceFailure.IMPOSSIBLE
    )


def test_the_first_of_a_crowd_needs_nobody_if_nobody_came_before() -> None:
    one = problem([*app_pods("x", 2, "x"), *app_pods("y", 1)])
    assert isinstance(
        find_valid_sequence(
            one, [KindAssignment(0, 0), KindAssignment(0, 0), KindAssignment(1, 2)]
        ),
        list,
    )
    assert (
        find_valid_sequence(one, [KindAssignment(0, 0), KindAssignment(0, 1)])
        is SequenceFailure.IMPOSSIBLE
    )


def test_no_domain_gets_ahead_on_the_way() -> None:
    one = problem(app_pods("x", 6, "x", even=True))
    assert isinstance(
        find_valid_sequence(one, [KindAssignment(0, n) for n in (0, 0, 1, 1, 2, 2)]), list
    )
    assert (
        find_valid_sequence(one, [KindAssignment(0, n) for n in (0, 0, 1, 1)])
        is SequenceFailure.IMPOSSIBLE
    )


def test_who_is_counted_but_does_not_count_may_come_last() -> None:
    loose = [pod(name, "g", labels={"app": "x"}) for name in "yz"]
    one = problem([*app_pods("x", 3, "x", even=True), *loose])
    pieces = [
        KindAssignment(0, 0),
        KindAssignment(0, 1),
        KindAssignment(0, 2),
        KindAssignment(1, 0),
        KindAssignment(1, 0),
    ]
    assert isinstance(find_valid_sequence(one, pieces), list)


def test_it_gives_up_after_so_many_steps() -> None:
    one = problem(app_pods("x", 6, "x", even=True))
    assert (
        find_valid_sequence(one, [KindAssignment(0, n) for n in (0, 0, 1, 1, 2, 2)], limit=3)
        is SequenceFailure.LIMIT_REACHED
    )
